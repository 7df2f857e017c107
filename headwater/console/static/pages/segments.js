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
  const began = get(path).then((found) => {
    fill(partition, found.partitions.slice(0, 2000).map((one) => h('option', { value: String(one.number) }, `${one.number}${one.damaged ? ' (damaged)' : ''}`)));
    partition.value = query.get('partition') ?? '0';
    element.dataset.drawn = 'yes';
  });

  async function look() {
    const found = await get(`${path}/segments/${partition.value}`);
    chosen ??= String(found.segments.at(-1).base);
    fill(list, grid('Segments', [{ title: 'Begins at' }, { title: 'Records', end: true }, { title: 'Size', end: true }, { title: 'Begun', end: true, wide: true }, { title: 'Closed', end: true, wide: true }],
      found.segments.map((one) => [
        h('button.linklike', { type: 'button', 'aria-pressed': String(String(one.base) === chosen), onclick: () => { chosen = String(one.base); first = 0; look(); } }, count(one.base)),
        count(one.end - one.base), bytes(one.bytes), h('span.muted', {}, date(one.begun)), one.closed ? h('span.muted', {}, date(one.closed)) : h('span.tag.good', {}, 'growing')])));
    fill(map, waiting('Reading and checking every frame…'));
    try {
      draw(await get(`${path}/segments/${partition.value}/${chosen}`, { first }));
    } catch (error) {
      fill(map, h('p.problem', {}, error.message));
    }
  }

  function draw(found) {
    const kinds = Object.entries(found.bytes).filter(([, size]) => size);
    fill(map,
      found.problem && h('p.problem', {}, `The header of the file: ${found.problem}`),
      h('p', {}, h('code', {}, found.file), ` · ${bytes(found.size)} · ${plural(found.frames, 'good frame')} · ${plural(found.records, 'record')}`,
        found.damaged ? h('span.tag.bad', {}, `${plural(found.damaged, 'damaged stretch', 'damaged stretches')}`) : h('span.tag.good', {}, 'no damage')),
      h('div.map', { role: 'img', 'aria-label': `Map of the file: ${kinds.map(([kind, size]) => `${bytes(size)} ${kind}`).join(', ')}` }, [...found.cells].map((cell) => h(`span.cell.${KINDS[cell]?.[0] ?? 'free'}`, {}))),
      h('div.legend', {}, Object.values(KINDS).filter(([, title]) => title).map(([kind, title]) => h('span.key', {}, h(`span.swatch.cell.${kind}`, {}), title))),
      found.damage.length ? h('div', {}, h('h3', {}, 'Damage'), grid('Damage', [{ title: 'Position', end: true }, { title: 'Length', end: true }, { title: 'What is wrong' }], found.damage.map((one) => [count(one.position), bytes(one.length), one.reason]))) : null,
      found.whole === false && h('p.note', {}, 'It is long: only its first part was looked at.'),
      found.served && h('p.note', {}, 'As the broker serves it: positions count from the first frame.'),
      h('h3', {}, 'Frames'),
      grid('Frames', [{ title: 'Position', end: true }, { title: 'Offset', end: true }, { title: 'Records', end: true }, { title: 'Size', end: true }, { title: 'Times', wide: true }, { title: '' }],
        found.page.map((one) => [count(one.position), count(one.offset), count(one.records), bytes(one.length), one.first ? h('span.muted', {}, `${moment(one.first)} – ${moment(one.last)}`) : '', [one.kind === 'damaged' ? h('span.tag.bad', {}, one.reason) : one.kind === 'behind' ? h('span.tag.warn', {}, 'not published') : null, one.codec && one.codec !== 'none' ? h('span.tag', {}, one.codec) : null, (one.features ?? []).map((feature) => h('span.tag', {}, feature))]])),
      found.count > found.page.length && h('div.buttons', {}, h('button', { type: 'button', disabled: first === 0, onclick: () => { first = Math.max(first - 200, 0); look(); } }, 'Earlier'), h('span.muted', {}, `${count(first + 1)} to ${count(first + found.page.length)} of ${count(found.count)}`), h('button', { type: 'button', disabled: first + 200 >= found.count, onclick: () => { first += 200; look(); } }, 'Later')));
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
