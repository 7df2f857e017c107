// All groups, and how far each is behind.

import { get } from '../api.js';
import { afterTyping, fill, h } from '../dom.js';
import { ago, count, date, plural } from '../format.js';
import { groupLink, heading, lag, topicLink } from '../parts.js';
import { Table } from '../table.js';

export function groups() {
  let all = [];
  const table = new Table([
    { title: 'Group', width: 'minmax(0, 2fr)', sort: (row) => row.name, render: (row) => h('a', { href: groupLink(row.name) }, row.name) },
    { title: 'Members', width: 'minmax(0, .7fr)', end: true, sort: (row) => row.members, render: (row) => (row.members ? count(row.members) : h('span.tag', {}, 'none')) },
    { title: 'Topics', width: 'minmax(0, 2fr)', wide: true, sort: (row) => row.topics?.length, render: (row) => (row.topics ?? []).slice(0, 4).map((topic, index) => [index ? ', ' : '', h('a', { href: topicLink(topic) }, topic)]).concat(row.topics?.length > 4 ? ` and ${row.topics.length - 4} more` : '') },
    { title: 'Lag', width: 'minmax(0, .8fr)', end: true, sort: (row) => row.lag, render: (row) => lag(row.lag) },
    { title: 'Worst partition', width: 'minmax(0, .9fr)', end: true, wide: true, sort: (row) => row.worst, render: (row) => lag(row.worst) },
    { title: 'Last commit', width: 'minmax(0, .9fr)', end: true, wide: true, sort: (row) => row.last, render: (row) => h('span.muted', { title: date(row.last) }, ago(row.last)) },
  ], { label: 'Groups', sorted: ['Lag', -1], open: (row) => { location.hash = groupLink(row.name); }, empty: 'No groups yet: the first consumer of a group creates it.' });
  const total = h('span.muted', {});
  const search = h('input.search', { type: 'search', placeholder: 'Search groups', 'aria-label': 'Search groups', oninput: afterTyping(() => draw(), 80) });
  table.follow(search);
  const element = h('div.fill', {}, heading('Groups'), h('div.toolbar', {}, search, total), table.element);

  function draw() {
    const word = search.value.toLowerCase().trim();
    const matches = all.filter((group) => group.name.toLowerCase().includes(word) || (group.topics ?? []).some((topic) => topic.toLowerCase().includes(word)));
    table.set(matches);
    fill(total, word ? `${count(matches.length)} of ${plural(all.length, 'group')}` : plural(all.length, 'group'));
  }

  return {
    title: 'Groups',
    element,
    async refresh() {
      all = (await get('/api/groups')).groups;
      element.dataset.drawn = 'yes';
      draw();
    },
    close: () => table.close(),
  };
}
