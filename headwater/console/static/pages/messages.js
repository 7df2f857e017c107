// Messages of a topic: live as they come, or looked through from any place.

import { get, part, withQuery } from '../api.js';
import { dialog, trying } from '../dialog.js';
import { afterTyping, fill, h } from '../dom.js';
import { count, exactly, moment, plural } from '../format.js';
import { Drawer, produce } from '../message.js';
import { heading, topicLink, topicTabs } from '../parts.js';
import { Table } from '../table.js';
import { Tail } from '../tail.js';

const PAGE = 200;
const RECENT = 50;
const FILTERS = [
  ["price > 10 and symbol in ('HW', 'WH')", 'compare columns of a typed topic'],
  ["address.city like '%os%'", 'parts of a column; also ilike, contains, starts with, ends with'],
  ["lower(name) matches '^a.*z$'", 'regular expressions, as RE2 has them'],
  ['paid is null or not shipped', 'null, and columns that are true or false'],
  ["value.customer.id = 7 and header('kind') = 'order'", 'JSON in a raw topic, and headers'],
  ['length(value) between 1000 and 2000', 'raw topics have key, value, timestamp, offset and partition'],
  ["key = 'customer-7' and timestamp > '-1h'", 'typed ones have _key, _timestamp, … beside their columns'],
];

/** A key or a value in the list. */
function cell(shown, none) {
  return shown?.size ? h('span.mono', {}, shown.text) : h('span.muted', {}, shown ? 'empty' : none);
}

export function messages({ session, query }, name) {
  const path = `/api/topics/${part(name)}`;
  let live = query.get('mode') !== 'browse' && !query.get('from');
  let paused = false;
  let about = null;
  let pageRows = [];
  let cursor = '';
  let done = false;
  let lookedAt = 0;
  let damage = [];
  let asking = 0;
  let left = false;

  // The inputs.
  const partition = h('select', { 'aria-label': 'Partition', onchange: () => restart() }, h('option', { value: '' }, 'all partitions'));
  const from = h('select', { 'aria-label': 'Where to begin', onchange: () => { position.hidden = !['offset', 'time'].includes(from.value); position.placeholder = from.value === 'time' ? '-1h or 2026-01-31T12:00' : 'offset, -100 from the end'; if (position.hidden) restart(); else position.focus(); } },
    [['latest', 'newest first'], ['earliest', 'oldest first'], ['offset', 'from offset'], ['time', 'from time']].map(([value, text]) => h('option', { value }, text)));
  const position = h('input.position', { hidden: true, 'aria-label': 'Offset or time', onchange: () => restart() });
  const typed = afterTyping(() => restart(), 400);
  const text = h('input', { type: 'search', placeholder: 'Text in the value', 'aria-label': 'Text in the value', oninput: typed });
  const key = h('input', { placeholder: 'Key', 'aria-label': 'Text in the key', oninput: typed });
  const where = h('input.where-input', { placeholder: "Filter: price > 10 and symbol = 'HW'", 'aria-label': 'Filter', spellcheck: 'false', onchange: () => restart() });
  const decode = h('select', { 'aria-label': 'How values are shown', onchange: () => restart() }, [['auto', 'Decode: auto'], ['text', 'UTF-8'], ['json', 'JSON'], ['hex', 'Hexadecimal']].map(([value, title]) => h('option', { value }, title)),
    h('option', { value: 'msgpack', disabled: !session.msgpack }, session.msgpack ? 'MessagePack' : 'MessagePack: pip install msgpack'));
  const wrong = h('p.problem', { role: 'alert', hidden: true });
  const asked = () => ({ partition: partition.value, text: text.value, key: key.value, where: where.value, decode: decode.value });
  const beginning = () => (['offset', 'time'].includes(from.value) ? position.value : from.value);

  // The list.
  const drawer = new Drawer(name, () => decode.value, () => table.focus());
  const table = new Table([
    { title: 'Time', width: '8.3rem', render: (row) => h('span.mono', { title: exactly(row.t) }, moment(row.t)) },
    { title: 'Partition', width: '4.4rem', end: true, wide: true, render: (row) => h('span.mono', {}, String(row.p)) },
    { title: 'Offset', width: '5.5rem', end: true, render: (row) => h('span.mono', {}, String(row.o)) },
    { title: 'Key', width: 'minmax(0, .6fr)', wide: true, render: (row) => cell(row.k, '–') },
    { title: 'Value', width: 'minmax(0, 2.4fr)', render: (row) => cell(row.v, 'null') },
  ], { label: 'Messages', height: 34, open: (row) => drawer.open(row), empty: 'No messages.' });
  table.body.addEventListener('scroll', () => {
    if (!live && !done && table.body.scrollTop + table.body.clientHeight > table.body.scrollHeight - 600) more();
  });

  const tail = new Tail(name, () => ({ ...asked(), from: 'latest' }), (added) => drawTail(added));
  const status = h('div.tail-status', { role: 'status' });
  const toggle = h('button.primary', { type: 'button', onclick: () => pause() });
  const modes = h('div.segmented', { role: 'group', 'aria-label': 'Live or looked through' });
  const downloads = h('button', { type: 'button', onclick: () => download() }, 'Download');
  const element = h('div.fill', {}, heading(name, [['Topics', '#/topics']], downloads,
    session.write && !name.startsWith('__') && h('button.primary', { type: 'button', onclick: () => trying(async () => produce(name, await get(path), () => live || restart())) }, 'New record')),
  topicTabs(name, 'Messages'),
  h('div.toolbar', {}, modes, partition, from, position, text, key, decode),
  h('div.toolbar', {}, where, h('button.icon', { type: 'button', 'aria-label': 'About filters', title: 'About filters', onclick: explain }, '?'), h('span.grow', {}), toggle, status),
  wrong, h('div.split', {}, table.element, drawer.element));

  function drawModes() {
    fill(modes, [['Live', true], ['Browse', false]].map(([title, value]) => h('button', {
      type: 'button', 'aria-pressed': String(live === value), onclick: () => { if (live !== value) { live = value; restart(); } },
    }, title)));
    from.hidden = live;
    position.hidden = live || !['offset', 'time'].includes(from.value);
    toggle.hidden = !live;
    toggle.textContent = paused ? 'Resume' : 'Pause';
  }

  /** Ask anew: what was asked for has changed. */
  function restart() {
    if (left) return; // what was typed last, or asked first, may come after the page was left
    tell('');
    tail.stop();
    tail.clear();
    paused = false;
    pageRows = [];
    cursor = '';
    done = false;
    lookedAt = 0;
    damage = [];
    asking += 1;
    remember();
    table.body.scrollTop = 0;
    drawModes();
    if (live) {
      table.options.empty = 'Waiting for the next message…';
      table.setVirtual(0, () => null);
      toggle.disabled = true; // there is nothing to hold still yet
      const mine = asking;
      recent().then((page) => {
        if (!page || mine !== asking) return;
        tail.begin(page);
        tail.start();
        toggle.disabled = false;
      });
    } else {
      table.options.empty = 'Looking…';
      table.set([]);
      more();
    }
    drawStatus();
  }

  /** The newest, which a tail begins with. An event stream cannot say what is wrong with a filter: this tells it. */
  async function recent() {
    const mine = asking;
    try {
      return await get(`${path}/messages`, { ...asked(), from: 'latest', limit: RECENT });
    } catch (error) {
      if (mine === asking) tell(error.message);
      return null;
    }
  }

  /** What is asked for, in the address of the page: so it can be passed on, and is there again after a reload. */
  function remember() {
    const start = beginning();
    const said = { ...asked(), mode: live ? '' : 'browse', from: live || start === 'latest' ? '' : start, decode: decode.value === 'auto' ? '' : decode.value };
    history.replaceState(null, '', withQuery(`${topicLink(name)}/messages`, said));
  }

  function tell(problem) {
    wrong.textContent = problem;
    wrong.hidden = !problem;
  }

  function pause() {
    if (toggle.disabled) return;
    paused = !paused;
    if (paused) tail.stop();
    else tail.start();
    drawModes();
    drawStatus();
  }

  function drawTail(added) {
    if (!live) return;
    // A reader further down keeps the place: it moves down as much as comes in above.
    const reading = table.body.scrollTop > table.height;
    const kept = tail.kept;
    if (reading) table.body.scrollTop += added * table.height;
    if (table.active >= 0) table.active += added;
    table.setVirtual(kept, (index) => tail.at(index));
    if (tail.error) tell(tail.error);
    drawStatus();
  }

  function drawStatus() {
    status.dataset.seen = live ? tail.seen : pageRows.length;
    status.dataset.missing = tail.missing;
    status.dataset.lookedAt = live ? tail.lookedAt : lookedAt;
    status.dataset.open = String(tail.open);
    status.dataset.done = String(done);
    if (live) {
      const chosen = (row) => !partition.value || partition.value === String(row.number);
      const waits = paused && about ? tail.behind(about.partitions.filter(chosen)) : 0;
      const filtered = text.value || key.value || where.value;
      fill(status, h(`span.dot.${paused ? 'warn' : 'good'}`, {}), paused ? `paused${waits ? `, ${count(waits)} waiting` : ''}` : 'live',
        h('span.muted', {}, ` · ${plural(tail.seen, 'message')}${filtered ? ` of ${count(tail.lookedAt)}` : ''}${tail.seen > tail.kept ? `, the last ${count(tail.kept)} kept` : ''}`),
        tail.notes.length ? h('span.tag.bad', { title: tail.notes.join('\n') }, plural(tail.notes.length, 'note')) : null);
    } else {
      fill(status, h('span.muted', {}, `${plural(pageRows.length, 'message')}${lookedAt > pageRows.length ? ` of ${count(lookedAt)} looked at` : ''}${done ? ', that is all' : ''}`),
        damage.length ? h('span.tag.bad', { title: damage.map((stretch) => `${stretch.partition}: ${stretch.offset} to ${stretch.next_offset - 1}: ${stretch.reason}`).join('\n') }, `${plural(damage.length, 'stretch', 'stretches')} damaged`) : null,
        !done && pageRows.length === 0 && h('button.small', { type: 'button', onclick: () => more() }, 'Look further'));
    }
  }

  let loading = false;
  /** The next page; it is also asked for while a list is scrolled. */
  async function more() {
    if (loading || done || live || left) return;
    loading = true;
    const mine = asking;
    try {
      const direction = from.value === 'latest' ? 'older' : 'newer';
      const page = await get(`${path}/messages`, { ...asked(), direction, limit: PAGE, ...(cursor ? { at: cursor } : { from: beginning() }) });
      if (mine !== asking) return;
      pageRows = pageRows.concat(page.rows);
      cursor = page.at;
      done = page.done;
      lookedAt += page.looked_at;
      damage = damage.concat(page.damage);
      table.options.empty = done ? 'No messages.' : 'Nothing found so far.';
      table.set(pageRows);
      drawStatus();
      // A search that has found little goes on by itself.
      if (!done && pageRows.length < 30) setTimeout(more, 50);
    } catch (error) {
      if (mine === asking) tell(error.message);
    } finally {
      loading = false;
      if (mine !== asking) more();
    }
  }

  function download() {
    const formats = [['ndjson', 'NDJSON: a JSON object a line'], ['parquet', 'Parquet: columns, for DuckDB, pandas, Spark']];
    const limit = h('input', { type: 'number', min: 1, max: 1000000, value: '100000' });
    dialog('Download', (close) => h('div.form', {},
      h('p', {}, 'The messages that the filters choose, the oldest of each partition first.'),
      h('label.field', {}, h('span.label', {}, 'At most'), limit),
      h('div.choices', {}, formats.map(([format, title]) => h('button', {
        type: 'button',
        onclick: () => {
          const start = !live && from.value !== 'latest' ? beginning() : 'earliest';
          const { decode: _, ...filters } = asked();
          const link = h('a', { href: withQuery(`${path}/download`, { ...filters, from: start, format, limit: limit.value }), download: '' });
          link.click();
          close();
        },
      }, title)))));
  }

  function explain() {
    dialog('Filters', () => h('div', {}, h('p', {}, 'A filter chooses records by their columns, as WHERE does in SQL. Put text in single quotes.'),
      h('dl.examples', {}, FILTERS.map(([code, about_]) => [h('dt', {}, h('code', {}, code)), h('dd', {}, about_)])),
      about && h('p.note', {}, `Columns here: ${about.raw ? 'partition, offset, timestamp, key, value' : ['_partition', '_offset', '_timestamp', '_key', ...about.schemas.at(-1).columns.map((column) => column.name)].join(', ')}`)), { wide: true });
  }

  const began = get(path).then((topic) => {
    about = topic;
    partition.append(...topic.partitions.slice(0, 2000).map((row) => h('option', { value: String(row.number) }, `partition ${row.number}`)));
    partition.value = query.get('partition') ?? '';
    for (const [input, said] of [[text, 'text'], [key, 'key'], [where, 'where']]) input.value = query.get(said) ?? '';
    if (decode.querySelector(`option[value="${CSS.escape(query.get('decode') ?? '')}"]:enabled`)) decode.value = query.get('decode');
    if (topic.raw) where.placeholder = "Filter: key = 'customer-7' and length(value) > 100";
    if (query.get('from')) {
      from.value = /^(latest|earliest)$/.test(query.get('from')) ? query.get('from') : /^-?\d+$/.test(query.get('from')) ? 'offset' : 'time';
      position.value = query.get('from');
    }
    element.dataset.drawn = 'yes';
    restart();
  });

  return {
    title: `${name}, messages`,
    element,
    async refresh() {
      await began;
      if (live) {
        about = await get(path);
        drawStatus();
      }
    },
    key(event) {
      if (event.key !== ' ' || !live || event.target.closest('button')) return false;
      pause();
      return true;
    },
    escape: () => drawer.close(),
    close: () => {
      left = true;
      asking += 1;
      tail.close();
      table.close();
    },
  };
}
