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
    { title: 'Records', format: 'records', pick: (series) => series === 'records/s' },
    { title: 'Lag of its groups', format: 'count', pick: (series) => series.startsWith('lag') },
  ]);
  const figures = h('div.figures', {});
  const partitions = h('div', {});
  const groups = h('div', {});
  const configuration = h('div', {});
  const activity = h('div', {});
  const schemas = h('div', {});
  const producers = h('div', {});
  const body = h('div', {}, waiting());
  const writable = session.write && !name.startsWith('__');
  const element = h('div', {}, heading(name, [['Topics', '#/topics']],
    writable && h('button', { type: 'button', onclick: () => alter() }, 'Change'),
    writable && h('button.danger-quiet', { type: 'button', onclick: () => erase() }, 'Delete')), topicTabs(name, 'Topic'), body);
  let last = null;
  let producersAsked = 0;

  function draw(topic) {
    last = topic;
    element.dataset.drawn = 'yes';
    if (!body.contains(figures)) {
      fill(body, figures, charts.element, card('Groups', groups), card('Partitions', partitions),
        h('div.columns', {}, card('Schema', schemas), card('Producers seen lately', producers)), card('Activity since it was created', activity), card('Configuration', configuration));
    }
    const all = topic.groups.reduce((sum, group) => sum + group.lag, 0);
    fill(figures,
      figure('Records in', rate(topic.rate), `${bytes(topic.bytes_per_second)}/s`),
      figure('Records', brief(topic.records), `${brief(topic.total_records)} ever written`),
      figure('Size', bytes(topic.bytes), plural(topic.partitions.length, 'partition')),
      figure('Lag', topic.groups.length ? brief(all) : '–', topic.groups.length ? plural(topic.groups.length, 'group') : 'no group reads it'),
      figure('Created', ago(topic.created), date(topic.created)));
    fill(groups, grid('Groups', [{ title: 'Group' }, { title: 'Members', end: true }, { title: 'Lag', end: true }],
      topic.groups.map((group) => [h('a', { href: groupLink(group.name) }, group.name), group.members ? count(group.members) : h('span.tag.warn', {}, 'none'), lag(group.lag)]), 'No group reads this topic.'));
    same(partitions, topic.partitions, () => grid('Partitions', [{ title: 'Partition' }, { title: 'Start', end: true, wide: true }, { title: 'End', end: true }, { title: 'Records', end: true, wide: true }, { title: 'Size', end: true }, { title: 'Segments', end: true, wide: true }, { title: 'Last record', end: true, wide: true }, { title: '' }],
      topic.partitions.slice(0, 500).map((partition) => [
        h('a', { href: `${topicLink(name)}/messages?partition=${partition.number}` }, String(partition.number)), count(partition.start), count(partition.end), brief(partition.end - partition.start), bytes(partition.bytes),
        h('a', { href: `${topicLink(name)}/segments?partition=${partition.number}` }, count(partition.segments)), h('span.muted', { title: date(partition.last) }, ago(partition.last)),
        partition.poisoned ? h('span.tag.bad', {}, 'disk failed') : partition.damaged ? h('span.tag.bad', {}, `${partition.damaged} damaged`) : h('span.tag.good', {}, 'healthy')])));
    if (topic.partitions.length > 500) partitions.append(h('p.muted', {}, `and ${count(topic.partitions.length - 500)} more`));
    same(activity, topic.activity, () => grid('Activity', [{ title: 'What' }, { title: 'How often', end: true }, { title: 'Each', end: true, wide: true }, { title: 'At most', end: true, wide: true }, { title: '' }], done(topic.activity)));
    same(schemas, topic.schemas, () => topic.schemas.map((schema, index) => h('div.schema', {},
      h('h3', {}, schema.raw ? 'Raw: keys, values and headers are bytes' : `Version ${index + 1}`, h('code.muted', {}, schema.id)),
      !schema.raw && grid('Columns', [{ title: 'Column' }, { title: 'Type' }, { title: '' }], schema.columns.map((column) => [column.name, h('code', {}, column.type), column.nullable ? '' : h('span.tag', {}, 'required')])))).reverse());
    same(configuration, topic.config, () => {
      const changed = topic.config.filter((option) => option.value !== option.default);
      const rows = (list) => list.map((option) => [h('code', {}, option.name), h('code', {}, option.value), h('span.muted', {}, option.value === option.default ? '' : option.default)]);
      const columns = [{ title: 'Option' }, { title: 'Value' }, { title: 'Default', wide: true }];
      return [changed.length ? grid('Changed options', columns, rows(changed)) : h('p.muted', {}, 'Everything is as by default.'),
        h('details', {}, h('summary', {}, 'All options'), grid('All options', columns, rows(topic.config)))];
    });
  }

  function alter() {
    const inputs = last.config.map((option) => [option, h('input', { value: option.value, 'aria-label': option.name })]);
    const number = h('input', { type: 'number', min: last.partitions.length, max: 10000, value: String(last.partitions.length) });
    form(`Change ${name}`, [
      field('Partitions', number, 'More partitions send keys elsewhere from now on. Stored records stay where they are.'),
      h('div.options', {}, inputs.map(([option, input]) => field(option.name, input, option.allowed))),
    ], {
      action: 'Change',
      wide: true,
      act: async () => {
        const config = Object.fromEntries(inputs.filter(([option, input]) => input.value !== option.value).map(([option, input]) => [option.name, input.value]));
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
    const answer = await get(`${path}/producers`);
    fill(producers, grid('Producers', [{ title: 'Producer' }, { title: 'Kind', wide: true }, { title: 'Partitions', end: true, wide: true }, { title: 'Records', end: true }, { title: 'Last', end: true }],
      answer.producers.map((producer) => [h('code', { title: producer.id }, producer.id.slice(0, 12)), producer.kind, count(producer.partitions.length), brief(producer.records), h('span.muted', {}, ago(producer.last))]), 'Nobody has written yet.'),
    h('p.note', {}, `By the last ${bytes(answer.looked_back)} of each partition.`));
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

const milliseconds = (nanoseconds) => `${(nanoseconds / 1e6).toFixed(2)} ms`;
const mean = (nanoseconds, number) => (number ? milliseconds(nanoseconds / number) : '–');

// The rows of the activity: what, how often, the time of each, the longest time, and what else there is to say.
function done(activity) {
  const failed = (number) => (number ? h('span.tag.bad', {}, `${count(number)} failed`) : '');
  return [
    ['Writes', count(activity.writes), mean(activity.write_ns, activity.writes), milliseconds(activity.longest_write_ns), failed(activity.failed_writes)],
    ['Syncs', count(activity.syncs), mean(activity.sync_ns, activity.syncs), milliseconds(activity.longest_sync_ns), failed(activity.failed_syncs)],
    ['Frames compressed', count(activity.compressed_frames), mean(activity.compression_ns, activity.compressed_frames), '', `${bytes(activity.compression_bytes_in)} became ${bytes(activity.compression_bytes_out)}; ${count(activity.compression_skipped)} were too small`],
    ['Rotations', count(activity.rotations), mean(activity.rotation_ns, activity.rotations), '', failed(activity.failed_rotations)],
    ['Index writes', count(activity.index_writes), '', '', failed(activity.failed_index_writes)],
    ['Reads', count(activity.reads), '', '', `${plural(activity.readers, 'reader')}; ${count(activity.cache_hits)} from the cache, ${count(activity.mappings)} mapped, ${count(activity.evictions)} given back`],
    ['Retention', count(activity.retention_runs), mean(activity.retention_ns, activity.retention_runs), '', [`${count(activity.retention_records)} records, ${bytes(activity.retention_bytes)}, removed; ${bytes(activity.protected_bytes)} kept for groups `, failed(activity.failed_retentions)]],
    ['Failed recoveries', count(activity.failed_recoveries), '', '', ''],
    ['Errors', count(activity.errors), '', '', activity.last_error_ns ? h('span.muted', { title: date(activity.last_error_ns / 1e6) }, `the last one ${ago(activity.last_error_ns / 1e6)}`) : ''],
  ];
}
