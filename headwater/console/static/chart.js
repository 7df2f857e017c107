// Charts over time, drawn by uPlot in the colours of the page.

import { get } from './api.js';
import { fill, h } from './dom.js';
import { brief, bytes, rate } from './format.js';

const EVERY = 5000;
export const SPANS = [['15 min', 15], ['1 h', 60], ['6 h', 360], ['24 h', 1440], ['7 d', 10080]];

/** What a colour of the style sheet is now: light or dark. */
export function colour(name) {
  const probe = h('span', { style: { color: `var(--${name})` }, hidden: true });
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

const DAY = 86400;
const BINARY = Array.from({ length: 52 }, (_, power) => 2 ** power);
const two = (value) => String(value).padStart(2, '0');

/** A moment on the axis: as exactly as the time that is shown needs it. */
function tick(seconds, span) {
  const when = new Date(seconds * 1000);
  const time = `${two(when.getHours())}:${two(when.getMinutes())}`;
  if (span > 2 * DAY) return `${when.getDate()}.${when.getMonth() + 1}. ${time}`;
  return span < 600 ? `${time}:${two(when.getSeconds())}` : time;
}

const FORMATS = { records: rate, bytes: (value) => `${bytes(value)}/s`, size: bytes, count: brief };

/** One chart. `format` is one of: records, bytes, size, count. */
export class Chart {
  constructor(title, format) {
    this.format = FORMATS[format];
    this.binary = format === 'bytes' || format === 'size';
    this.plotArea = h('div.plot', {});
    this.legend = h('div.legend', {});
    this.element = h('figure.chart', {}, h('figcaption', {}, title), this.plotArea, this.legend);
    this.data = [[], []];
    this.names = [];
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.plotArea);
    this.recolour = () => this.make();
    addEventListener('theme', this.recolour);
  }

  /** Show times in seconds, and a line of values for each name. */
  set(times, series) {
    const names = series.map((line) => line.name);
    this.data = [times, ...series.map((line) => line.values)];
    this.series = series;
    if (this.plot && names.join('\n') === this.names.join('\n')) {
      this.plot.setData(this.data);
      this.tell(null);
    } else {
      this.names = names;
      this.make();
    }
    this.element.dataset.points = times.length;
    this.element.dataset.first = times[0] ?? '';
    this.element.dataset.last = times.at(-1) ?? '';
  }

  make() {
    this.plot?.destroy();
    this.plot = undefined;
    if (this.data[0].length < 2 || !this.names.length) {
      fill(this.plotArea, h('p.waiting', {}, this.names.length || !this.data[0].length ? 'Gathering the first points…' : 'Nothing to draw.'));
      fill(this.legend);
      return;
    }
    fill(this.plotArea);
    const ink = colour('muted');
    const grid = colour('line');
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' };
    const single = this.names.length === 1;
    this.colours = this.names.map((_, index) => colour(`series-${(index % 8) + 1}`));
    this.plot = new uPlot({
      width: Math.max(this.plotArea.clientWidth, 100),
      height: Math.max(this.plotArea.clientHeight, 80),
      padding: [8, 20, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max((high ?? 0) * 1.1, 1)] } },
      axes: [
        { ...axis, size: 26, gap: 4, space: 80, values: (plot, ticks) => ticks.map((time) => tick(time, plot.scales.x.max - plot.scales.x.min)) },
        { ...axis, size: 66, gap: 6, space: 34, ...(this.binary ? { incrs: BINARY } : {}), values: (_, ticks) => ticks.map(this.format) },
      ],
      series: [{}, ...this.names.map((name, index) => ({
        label: name,
        stroke: this.colours[index],
        width: 1.75,
        fill: single ? this.colours[index].replace('rgb(', 'rgba(').replace(')', ', 0.13)') : undefined,
        points: { show: false },
        gaps: (plot, _, first, last) => this.gaps(plot, first, last),
      }))],
      hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx)] },
    }, this.data, this.plotArea);
    this.tell(null);
  }

  /** Where nobody has looked there is no line: the console was not there, or nobody stewarded the store. */
  gaps(plot, first, last) {
    const times = plot.data[0];
    const steps = times.slice(1).map((time, index) => time - times[index]).sort((left, right) => left - right);
    const longest = Math.max(5 * steps[steps.length >> 1], 60);
    const at = (index) => plot.valToPos(times[index], 'x', true);
    const gaps = [];
    for (let index = first + 1; index <= last; index += 1) {
      if (times[index] - times[index - 1] > longest) gaps.push([at(index - 1), at(index)]);
    }
    return gaps;
  }

  /** The values under the pointer, or the last ones. */
  tell(index) {
    const at = index ?? this.data[0].length - 1;
    fill(this.legend,
      h('span.at', {}, index === null || index === undefined ? 'now' : new Date(this.data[0][at] * 1000).toLocaleTimeString('en-GB')),
      this.names.map((name, number) => h('span.key', {},
        h('span.swatch', { style: { background: this.colours?.[number] ?? 'transparent' } }),
        h('span.name', {}, name), h('b', {}, this.format(this.value(number + 1, index))))));
  }

  /** What a line says at a point; without a point, what it has said last. */
  value(line, index) {
    const values = this.data[line] ?? [];
    return index === null || index === undefined ? values.findLast((value) => value !== null) ?? null : values[index] ?? null;
  }

  resize() {
    if (this.plot && this.plotArea.clientWidth) this.plot.setSize({ width: this.plotArea.clientWidth, height: Math.max(this.plotArea.clientHeight, 80) });
  }

  close() {
    this.watcher.disconnect();
    removeEventListener('theme', this.recolour);
    this.plot?.destroy();
  }
}

/**
 * Charts of a store, a topic or a group, with a choice of the time that they cover, which stays as it was last chosen.
 * charts: {title, format, pick(name): whether a series is for this chart}.
 */
export class History {
  constructor(query, charts) {
    this.query = query;
    this.minutes = Number(localStorage.getItem('headwater-span')) || 60;
    this.charts = charts.map((chart) => ({ ...chart, chart: new Chart(chart.title, chart.format) }));
    this.note = h('p.note', {});
    this.spans = h('div.segmented', { role: 'group', 'aria-label': 'Time shown' });
    this.element = h('section.history', {}, h('div.history-head', {}, this.note, this.spans),
      h('div.charts', {}, this.charts.map((entry) => entry.chart.element)));
    this.asked = 0;
    this.drawSpans();
  }

  drawSpans() {
    fill(this.spans, SPANS.map(([name, minutes]) => h('button', {
      type: 'button',
      'aria-pressed': String(minutes === this.minutes),
      onclick: () => {
        this.minutes = minutes;
        localStorage.setItem('headwater-span', String(minutes));
        this.asked = 0;
        this.drawSpans();
        this.refresh();
      },
    }, name)));
  }

  async refresh() {
    if (Date.now() - this.asked < EVERY && this.history) return;
    this.asked = Date.now();
    let history;
    try {
      history = await get('/api/history', { ...this.query, minutes: this.minutes });
    } catch {
      return;
    }
    this.history = history;
    for (const { chart, pick } of this.charts) chart.set(history.times, history.series.filter((line) => pick(line.name)));
    const since = new Date(history.since).toLocaleTimeString('en-GB');
    this.note.textContent = history.recorded
      ? history.stewarded ? '' : 'No steward runs for this store any more: older points are from its history, newer points from this console.'
      : history.stewarded === null ? `You may not read its history: charts begin at ${since}, when the console started.`
        : `No steward runs for this store: charts begin at ${since}, when the console started.`;
  }

  close() {
    for (const { chart } of this.charts) chart.close();
  }
}
