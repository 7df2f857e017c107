// Pipelines: what they are made of, how far they are, what they refuse and what went wrong.

import { get } from '../api.js';
import { Chart } from '../chart.js';
import { fill, h, same, svg } from '../dom.js';
import { ago, brief, bytes, count, date, rate } from '../format.js';
import { card, grid, heading, lag, waiting } from '../parts.js';

const STATES = { running: 'good', done: 'good', stopped: '', failed: 'bad', quiet: 'warn', unknown: '' };
const WIDE = 196;
const HIGH = 64;
const GAP = 48;

/** A drawing of what is made of what, from left to right. */
function drawing(graph) {
  const depth = new Map();
  const keyOf = (vertex) => (vertex.kind === 'sink' ? `sink ${vertex.name}` : vertex.name);
  for (const vertex of graph) depth.set(keyOf(vertex), Math.max(0, ...vertex.inputs.map((input) => (depth.get(input) ?? 0) + 1)));
  const levels = [];
  const corners = new Map();
  for (const vertex of graph) {
    const level = depth.get(keyOf(vertex));
    levels[level] = (levels[level] ?? 0) + 1;
    corners.set(keyOf(vertex), [level * (WIDE + GAP) + 2, (levels[level] - 1) * (HIGH + 18) + 2]);
  }
  const width = levels.length * (WIDE + GAP) - GAP + 4;
  const height = Math.max(...levels.map((size) => size ?? 0)) * (HIGH + 18) - 14;
  const lines = graph.flatMap((vertex) => vertex.inputs.filter((input) => corners.has(input)).map((input) => {
    const [x1, y1] = corners.get(input);
    const [x2, y2] = corners.get(keyOf(vertex));
    const [from, to] = [[x1 + WIDE, y1 + HIGH / 2], [x2, y2 + HIGH / 2]];
    return svg('path', { class: 'edge', d: `M${from} C${from[0] + GAP / 2},${from[1]} ${to[0] - GAP / 2},${to[1]} ${to}` });
  }));
  const boxes = graph.map((vertex) => {
    const [x, y] = corners.get(keyOf(vertex));
    const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
    return svg('g', { class: `vertex ${vertex.kind}`, transform: `translate(${x},${y})` }, svg('title', {}, `${vertex.kind} ${vertex.name}: ${vertex.detail}`), svg('rect', { width: WIDE, height: HIGH, rx: 8 }),
      svg('text', { x: 12, y: 20, class: 'kind' }, vertex.kind), svg('text', { x: 12, y: 38, class: 'name' }, cut(vertex.name, 24)), svg('text', { x: 12, y: 54, class: 'detail' }, cut(vertex.detail, 31)));
  });
  return h('div.graph', {}, svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': 'Graph of the pipeline' }, lines, boxes));
}

export function pipelines() {
  const list = h('div', {}, waiting());
  const element = h('div', {}, heading('Pipelines'), list);
  let charts = [];
  const shown = new Map();

  function draw(pipeline) {
    let here = shown.get(pipeline.name);
    if (!here) {
      here = { head: h('div', {}), graph: h('div', {}), sinks: h('div', {}), rules: h('div', {}), rows: new Chart('Rows in a batch', 'count'), lag: new Chart('Lag', 'count') };
      charts.push(here.rows, here.lag);
      here.card = card(null, here.head, here.graph, h('div.charts', {}, here.rows.element, here.lag.element), here.sinks, here.rules);
      shown.set(pipeline.name, here);
    }
    fill(here.head, h('div.heading', {}, h('h2', {}, pipeline.name), h(`span.tag.${STATES[pipeline.state] || 'plain'}`, {}, pipeline.state), h('span.muted', { title: date(pipeline.last) }, `last heard of ${ago(pipeline.last)}`)),
      pipeline.last_error && h('p.problem', {}, pipeline.last_error.split('\n')[0].slice(0, 500)));
    same(here.graph, pipeline.graph, () => (pipeline.graph.length ? drawing(pipeline.graph) : h('p.note', {}, 'Its graph is shown from its next run on.')));
    const sinks = Object.entries(pipeline.sinks);
    const times = [...new Set(sinks.flatMap(([, sink]) => sink.batches.map((batch) => batch.t / 1000)))].sort((a, b) => a - b);
    const line = (pick) => sinks.map(([name, sink]) => {
      const known = new Map(sink.batches.map((batch) => [batch.t / 1000, pick(batch)]));
      return { name, values: times.map((time) => known.get(time) ?? null) };
    });
    here.rows.set(times, line((batch) => batch.rows));
    here.lag.set(times, line((batch) => batch.lag));
    fill(here.sinks, grid('Sinks', [{ title: 'Sink' }, { title: 'Batch', end: true }, { title: 'Rows', end: true }, { title: 'Rate', end: true }, { title: 'Lag', end: true }, { title: 'State', end: true, wide: true }, { title: '' }],
      sinks.map(([name, sink]) => [name, count(sink.number), brief(sink.rows), rate(sink.rate), lag(sink.lag), sink.state_bytes ? `${brief(sink.state_rows)} (${bytes(sink.state_bytes)})` : '–', sink.error ? h('span.tag.bad', { title: sink.error }, 'failing') : sink.failures ? h('span.tag.warn', {}, `${sink.failures} failures`) : h('span.tag.good', {}, 'well')])));
    const rules = Object.entries(pipeline.violations);
    same(here.rules, pipeline.violations, () => rules.length && [h('h3', {}, 'Expectations that rows broke'), grid('Expectations', [{ title: 'Rule' }, { title: 'Rows', end: true }], rules.map(([rule, number]) => [h('code', {}, rule), number ? h('span.tag.warn', {}, count(number)) : h('span.tag.good', {}, '0')]))]);
    return here.card;
  }

  return {
    title: 'Pipelines',
    element,
    async refresh() {
      const answer = await get('/api/pipelines');
      element.dataset.drawn = 'yes';
      if (!answer.pipelines.length) {
        same(list, 'none', () => h('div.empty', {}, h('h2', {}, 'No pipeline has run over this store'), h('p', {}, 'A pipeline carries topics and files through SQL and Python to topics and tables, each row exactly once: ', h('code', {}, 'hw pipeline run revenue.yaml'))));
        return;
      }
      const cards = answer.pipelines.map(draw);
      if (cards.length !== list.children.length || cards.some((card, index) => card !== list.children[index])) {
        delete list.lastKey;
        fill(list, cards);
      }
    },
    close: () => {
      charts.forEach((chart) => chart.close());
      charts = [];
    },
  };
}
