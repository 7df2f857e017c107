// One topic: its charts, partitions, groups, configuration, schemas and producers.

import { get, part, patch, remove } from '../api.js';
import { History } from '../chart.js';
import { field, form, toast } from '../dialog.js';
import { fill, h, same } from '../dom.js';
import { ago, brief, bytes, count, date, plural, rate } from '../format.js';
import { card, figure, grid, groupLink, heading, lag, topicLink, topicTabs, waiting } from '../parts.js';

export function topic({ session }, name) {
  const path = `/api/topics/${part(name)}`;
  const charts = new History({ of: 'topic', name }, [
    { title: 'Records', format: 'records', pick: (one) => one === 'records/s' },
    { title: 'Lag of its groups', format: 'count', pick: (one) => one.startsWith('lag') },
  ]);
  const figures = h('div.figures', {});
  const partitions = h('div', {});
  const groups = h('div', {});
  const configuration = h('div', {});
  const schemas = h('div', {});
  const producers = h('div', {});
  const body = h('div', {}, waiting());
  const writable = session.write && !name.startsWith('__');
  const element = h('div', {}, heading(name, [['Topics', '#/topics']],
    writable && h('button', { type: 'button', onclick: () => alter() }, 'Change'),
    writable && h('button.danger-quiet', { type: 'button', onclick: () => erase() }, 'Delete')), topicTabs(name, 'Topic'), body);
  let last = null;
  let producersAsked = 0;

  function draw(found) {
    last = found;
    element.dataset.drawn = 'yes';
    if (!body.contains(figures)) {
      fill(body, figures, charts.element, card('Groups', groups), card('Partitions', partitions),
        h('div.columns', {}, card('Schema', schemas), card('Producers seen lately', producers)), card('Configuration', configuration));
    }
    const all = found.groups.reduce((sum, one) => sum + one.lag, 0);
    fill(figures,
      figure('Records in', rate(found.rate), `${bytes(found.bytes_per_second)}/s`),
      figure('Records', brief(found.records), `${brief(found.total_records)} ever written`),
      figure('Size', bytes(found.bytes), plural(found.partitions.length, 'partition')),
      figure('Lag', found.groups.length ? brief(all) : '–', found.groups.length ? plural(found.groups.length, 'group') : 'no group reads it'),
      figure('Created', ago(found.created), date(found.created)));
    fill(groups, grid('Groups', [{ title: 'Group' }, { title: 'Members', end: true }, { title: 'Lag', end: true }],
      found.groups.map((one) => [h('a', { href: groupLink(one.name) }, one.name), one.members ? count(one.members) : h('span.tag.warn', {}, 'none'), lag(one.lag)]), 'No group reads this topic.'));
    same(partitions, found.partitions, () => grid('Partitions', [{ title: 'Partition' }, { title: 'Start', end: true, wide: true }, { title: 'End', end: true }, { title: 'Records', end: true, wide: true }, { title: 'Size', end: true }, { title: 'Segments', end: true, wide: true }, { title: 'Last record', end: true, wide: true }, { title: '' }],
      found.partitions.slice(0, 500).map((one) => [
        h('a', { href: `${topicLink(name)}/messages?partition=${one.number}` }, String(one.number)), count(one.start), count(one.end), brief(one.end - one.start), bytes(one.bytes),
        h('a', { href: `${topicLink(name)}/segments?partition=${one.number}` }, count(one.segments)), h('span.muted', { title: date(one.last) }, ago(one.last)),
        one.poisoned ? h('span.tag.bad', {}, 'disk failed') : one.damaged ? h('span.tag.bad', {}, `${one.damaged} damaged`) : h('span.tag.good', {}, 'healthy')])));
    if (found.partitions.length > 500) partitions.append(h('p.muted', {}, `and ${count(found.partitions.length - 500)} more`));
    same(schemas, found.schemas, () => found.schemas.map((one, index) => h('div.schema', {},
      h('h3', {}, one.raw ? 'Raw: keys, values and headers are bytes' : `Version ${index + 1}`, h('code.muted', {}, one.id)),
      !one.raw && grid('Columns', [{ title: 'Column' }, { title: 'Type' }, { title: '' }], one.columns.map((column) => [column.name, h('code', {}, column.type), column.nullable ? '' : h('span.tag', {}, 'required')])))).reverse());
    same(configuration, found.config, () => {
      const changed = found.config.filter((one) => one.value !== one.default);
      const rows = (list) => list.map((one) => [h('code', {}, one.name), h('code', {}, one.value), h('span.muted', {}, one.value === one.default ? '' : one.default)]);
      const columns = [{ title: 'Option' }, { title: 'Value' }, { title: 'Default', wide: true }];
      return [changed.length ? grid('Changed options', columns, rows(changed)) : h('p.muted', {}, 'Everything is as by default.'),
        h('details', {}, h('summary', {}, 'All options'), grid('All options', columns, rows(found.config)))];
    });
  }

  function alter() {
    const inputs = last.config.map((one) => [one, h('input', { value: one.value, 'aria-label': one.name })]);
    const number = h('input', { type: 'number', min: last.partitions.length, max: 10000, value: String(last.partitions.length) });
    form(`Change ${name}`, [
      field('Partitions', number, 'More send keys elsewhere from now on; what is there stays where it is.'),
      h('div.options', {}, inputs.map(([one, input]) => field(one.name, input, one.allowed))),
    ], {
      action: 'Change',
      wide: true,
      act: async () => {
        const config = Object.fromEntries(inputs.filter(([one, input]) => input.value !== one.value).map(([one, input]) => [one.name, input.value]));
        const more = Number(number.value);
        await patch(path, { config, ...(more === last.partitions.length ? {} : { partitions: more }) });
        toast(`Topic ${name} was changed.`);
        draw(await get(path));
      },
    });
  }

  function erase() {
    const typed = h('input', { 'aria-label': 'Name of the topic', autocomplete: 'off', autofocus: true });
    form('Delete the topic?', [
      h('p', {}, 'All ', h('b', {}, plural(last.records, 'record')), ' of ', h('b', {}, name), ' are removed, for everyone, and nothing brings them back. ',
        last.groups.length ? `${plural(last.groups.length, 'group')} read${last.groups.length === 1 ? 's' : ''} it.` : ''),
      field('Type its name to delete it', typed),
    ], {
      action: 'Delete',
      danger: true,
      act: async () => {
        await remove(path, { confirm: typed.value });
        toast(`Topic ${name} was deleted.`);
        location.hash = '#/topics';
      },
    });
  }

  async function lookAtProducers() {
    producersAsked = Date.now();
    const found = await get(`${path}/producers`);
    fill(producers, grid('Producers', [{ title: 'Producer' }, { title: 'Kind', wide: true }, { title: 'Partitions', end: true, wide: true }, { title: 'Records', end: true }, { title: 'Last', end: true }],
      found.producers.map((one) => [h('code', { title: one.id }, one.id.slice(0, 12)), one.kind, count(one.partitions.length), brief(one.records), h('span.muted', {}, ago(one.last))]), 'Nobody has written yet.'),
    h('p.note', {}, `By the last ${bytes(found.looked_back)} of each partition.`));
  }

  return {
    title: name,
    element,
    async refresh() {
      draw(await get(path));
      charts.refresh();
      if (Date.now() - producersAsked > 15000) lookAtProducers().catch(() => {});
    },
    close: () => charts.close(),
  };
}
