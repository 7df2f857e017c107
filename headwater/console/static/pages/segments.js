// The files of a partition, and the map of one of them.

import { get, part } from '../api.js';
import { fill, h } from '../dom.js';
import { bytes, count, date, moment, plural } from '../format.js';
import { card, grid, heading, topicTabs, waiting } from '../parts.js';

const KINDS = { h: ['header', 'header'], p: ['plain', 'frames'], c: ['compressed', 'compressed frames'], b: ['behind', 'behind the published end'], d: ['damaged', 'damaged'], ' ': ['free', ''] };

export function segments({ query }, name) {
  const path = `/api/topics/${part(name)}`;
  let chosen = query.get('base');
  let first = 0;
  const partition = h('select', { 'aria-label': 'Partition', onchange: () => { chosen = null; first = 0; look(); } });
  const list = h('div', {});
  const map = h('div', {});
  const element = h('div', {}, heading(name, [['Topics', '#/topics']]), topicTabs(name, 'Files'),
    h('div.toolbar', {}, h('label.row', {}, 'Partition', partition)), card('Segments', list), card('Map of the file', map));
  const began = get(path).then((topic) => {
    fill(partition, topic.partitions.slice(0, 2000).map((row) => h('option', { value: String(row.number) }, `${row.number}${row.damaged ? ' (damaged)' : ''}`)));
    partition.value = query.get('partition') ?? '0';
    element.dataset.drawn = 'yes';
  });

  async function look() {
    const listed = await get(`${path}/segments/${partition.value}`);
    chosen ??= String(listed.segments.at(-1).base);
    fill(list, grid('Segments', [{ title: 'Begins at' }, { title: 'Records', end: true }, { title: 'Size', end: true }, { title: 'Begun', end: true, wide: true }, { title: 'Closed', end: true, wide: true }],
      listed.segments.map((segment) => [
        h('button.linklike', { type: 'button', 'aria-pressed': String(String(segment.base) === chosen), onclick: () => { chosen = String(segment.base); first = 0; look(); } }, count(segment.base)),
        count(segment.end - segment.base), bytes(segment.bytes), h('span.muted', {}, date(segment.begun)), segment.closed ? h('span.muted', {}, date(segment.closed)) : h('span.tag.good', {}, 'growing')])));
    fill(map, waiting('Reading and checking every frame…'));
    try {
      draw(await get(`${path}/segments/${partition.value}/${chosen}`, { first }));
    } catch (error) {
      fill(map, h('p.problem', {}, error.message));
    }
  }

  function draw(segment) {
    const kinds = Object.entries(segment.bytes).filter(([, size]) => size);
    fill(map,
      segment.problem && h('p.problem', {}, `The header of the file: ${segment.problem}`),
      h('p', {}, h('code', {}, segment.file), ` · ${bytes(segment.size)} · ${plural(segment.frames, 'good frame')} · ${plural(segment.records, 'record')}`,
        segment.damaged ? h('span.tag.bad', {}, `${plural(segment.damaged, 'damaged stretch', 'damaged stretches')}`) : h('span.tag.good', {}, 'no damage')),
      h('div.map', { role: 'img', 'aria-label': `Map of the file: ${kinds.map(([kind, size]) => `${bytes(size)} ${kind}`).join(', ')}` }, [...segment.cells].map((cell) => h(`span.cell.${KINDS[cell]?.[0] ?? 'free'}`, {}))),
      h('div.legend', {}, Object.values(KINDS).filter(([, title]) => title).map(([kind, title]) => h('span.key', {}, h(`span.swatch.cell.${kind}`, {}), title))),
      segment.damage.length ? h('div', {}, h('h3', {}, 'Damage'), grid('Damage', [{ title: 'Position', end: true }, { title: 'Length', end: true }, { title: 'What is wrong' }], segment.damage.map((stretch) => [count(stretch.position), bytes(stretch.length), stretch.reason]))) : null,
      segment.whole === false && h('p.note', {}, 'The segment is long: only its first part was read.'),
      segment.served && h('p.note', {}, 'As the broker serves it: positions count from the first frame.'),
      h('h3', {}, 'Frames'),
      grid('Frames', [{ title: 'Position', end: true }, { title: 'Offset', end: true }, { title: 'Records', end: true }, { title: 'Size', end: true }, { title: 'Times', wide: true }, { title: '' }],
        segment.page.map((frame) => [count(frame.position), count(frame.offset), count(frame.records), bytes(frame.length), frame.first ? h('span.muted', {}, `${moment(frame.first)} – ${moment(frame.last)}`) : '', [frame.kind === 'damaged' ? h('span.tag.bad', {}, frame.reason) : frame.kind === 'behind' ? h('span.tag.warn', {}, 'not published') : null, frame.codec && frame.codec !== 'none' ? h('span.tag', {}, frame.codec) : null, (frame.features ?? []).map((feature) => h('span.tag', {}, feature))]])),
      segment.count > segment.page.length && h('div.buttons', {}, h('button', { type: 'button', disabled: first === 0, onclick: () => { first = Math.max(first - 200, 0); look(); } }, 'Earlier'), h('span.muted', {}, `${count(first + 1)} to ${count(first + segment.page.length)} of ${count(segment.count)}`), h('button', { type: 'button', disabled: first + 200 >= segment.count, onclick: () => { first += 200; look(); } }, 'Later')));
  }

  let looked = false;
  return {
    title: `${name}, files`,
    element,
    async refresh() {
      await began;
      if (looked) return;
      looked = true;
      await look();
    },
  };
}
