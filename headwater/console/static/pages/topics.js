// All topics: searched, sorted, made.

import { get, post } from '../api.js';
import { field, form, toast } from '../dialog.js';
import { afterTyping, fill, h } from '../dom.js';
import { ago, brief, bytes, count, date, plural, rate } from '../format.js';
import { heading, lag, topicLink } from '../parts.js';
import { Table } from '../table.js';

export function topics({ session }) {
  let all = [];
  const table = new Table([
    { title: 'Topic', width: 'minmax(0, 2.4fr)', sort: (row) => row.name, render: (row) => [h('a', { href: topicLink(row.name) }, row.name), row.unhealthy || row.problem ? h('span.tag.bad', { title: row.problem }, row.problem ? 'unreadable' : 'damaged') : null, row.compact ? h('span.tag', {}, 'compacted') : null] },
    { title: 'Partitions', width: 'minmax(0, .7fr)', end: true, wide: true, sort: (row) => row.partitions, render: (row) => count(row.partitions) },
    { title: 'Records', width: 'minmax(0, .8fr)', end: true, sort: (row) => row.records, render: (row) => h('span', { title: count(row.records) }, brief(row.records)) },
    { title: 'Size', width: 'minmax(0, .8fr)', end: true, wide: true, sort: (row) => row.bytes, render: (row) => bytes(row.bytes) },
    { title: 'Rate', width: 'minmax(0, .7fr)', end: true, sort: (row) => row.rate, render: (row) => h(`span${row.rate ? '' : '.muted'}`, {}, rate(row.rate)) },
    { title: 'Lag', width: 'minmax(0, .7fr)', end: true, sort: (row) => row.lag ?? -1, render: (row) => lag(row.lag) },
    { title: 'Last record', width: 'minmax(0, .8fr)', end: true, wide: true, sort: (row) => row.last, render: (row) => h('span.muted', { title: date(row.last) }, ago(row.last)) },
  ], {
    label: 'Topics',
    sorted: ['Topic', 1],
    open: (row) => { location.hash = topicLink(row.name); },
    empty: 'No topics.',
  });
  const total = h('span.muted', {});
  const search = h('input.search', { type: 'search', placeholder: 'Search topics', 'aria-label': 'Search topics', oninput: afterTyping(() => draw(), 80) });
  table.follow(search);
  const element = h('div.fill', {},
    heading('Topics', [], session.write && h('button.primary', { type: 'button', onclick: () => create() }, 'New topic')),
    h('div.toolbar', {}, search, total), table.element);

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = words.length ? all.filter((topic) => words.every((word) => topic.name.toLowerCase().includes(word))) : all;
    table.options.empty = words.length ? 'No topic has such a name.' : 'No topics yet.';
    table.set(matches);
    fill(total, words.length ? `${count(matches.length)} of ${plural(all.length, 'topic')}` : plural(all.length, 'topic'));
  }

  async function create() {
    const { types } = await get('/api/topic-defaults');
    const name = h('input', { name: 'name', required: true, autofocus: true, pattern: '[A-Za-z0-9_\\-][A-Za-z0-9._\\-]*', maxlength: 255 });
    const partitions = h('input', { name: 'partitions', type: 'number', min: 1, max: 10000, value: '1', required: true });
    const retention = h('input', { name: 'retention', placeholder: 'none, 12h, 7d …' });
    const most = h('input', { name: 'bytes', placeholder: 'none, 500MiB, 20GiB …' });
    const compact = h('input', { type: 'checkbox', name: 'compact' });
    const columns = h('div.column-list', {});
    const add = () => columns.append(h('div.column', {},
      h('input', { 'aria-label': 'Name of the column', placeholder: 'name', required: true }),
      h('select', { 'aria-label': 'Type of the column' }, types.map((type) => h('option', {}, type))),
      h('button.icon', { type: 'button', 'aria-label': 'Remove the column', onclick: (event) => event.target.closest('.column').remove() }, '×')));
    form('New topic', [
      field('Name', name), field('Partitions', partitions, 'You can add partitions later, but not remove them.'),
      h('div.pair', {}, field('Keep for', retention, 'By the age of records'), field('Keep at most', most, 'In each partition')),
      h('label.check', {}, compact, 'Compacted: keep the newest record of each key'),
      h('div.field', {}, h('span.label', {}, 'Columns'), h('span.hint', {}, 'Without columns the topic is raw: its values are bytes.'), columns, h('button.small', { type: 'button', onclick: add }, 'Add a column')),
    ], {
      action: 'Create',
      act: async () => {
        const config = {};
        if (retention.value.trim()) config.retention_age = retention.value.trim();
        if (most.value.trim()) config.retention_bytes = most.value.trim();
        if (compact.checked) config.compact = 'true';
        const typed = [...columns.children].map((row) => ({ name: row.querySelector('input').value, type: row.querySelector('select').value }));
        await post('/api/topics', { name: name.value.trim(), partitions: Number(partitions.value), config, columns: typed });
        toast(`Topic ${name.value.trim()} was created.`);
        location.hash = topicLink(name.value.trim());
      },
    });
  }

  return {
    title: 'Topics',
    element,
    async refresh() {
      const answer = await get('/api/topics');
      all = answer.topics;
      element.dataset.drawn = 'yes';
      draw();
    },
    close: () => table.close(),
  };
}
