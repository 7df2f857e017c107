// A table of any length: only the rows that can be seen exist. Sorted by a click on a heading, walked by the keyboard.

import { fill, h } from './dom.js';

const HEIGHT = 42;
const MORE = 8;

/**
 * columns: {title, width, render(row), sort(row)?, end?: right-aligned, wide?: only on wide screens}.
 * options: label, open(row), rowKey(row), empty: text, height: of a row, sorted: [column, -1 | 1].
 */
export class Table {
  constructor(columns, options) {
    this.all = columns;
    this.options = options;
    this.rows = [];
    this.shown = [];
    this.active = -1;
    this.sorting = options.sorted ?? null;
    this.height = options.height ?? HEIGHT;
    this.head = h('div.vt-head', { role: 'row' });
    this.spacer = h('div.vt-spacer', {});
    this.empty = h('div.vt-empty', { hidden: true });
    this.body = h('div.vt-body', { tabIndex: 0, role: 'rowgroup', onscroll: () => this.draw(), onkeydown: (event) => this.key(event) }, this.spacer, this.empty);
    this.element = h('div.vt', { role: 'table', 'aria-label': options.label }, this.head, this.body);
    this.narrow = matchMedia('(max-width: 760px)');
    this.turned = () => this.layOut();
    this.narrow.addEventListener('change', this.turned);
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.body);
    this.drawn = new Map();
    this.layOut();
  }

  layOut() {
    this.columns = this.all.filter((column) => !(column.wide && this.narrow.matches));
    this.element.style.setProperty('--columns', this.columns.map((column) => column.width ?? 'minmax(0, 1fr)').join(' '));
    fill(this.head, this.columns.map((column) => this.heading(column)));
    this.drawn.clear();
    this.spacer.replaceChildren();
    this.draw();
  }

  heading(column) {
    const [by, way] = this.sorting ?? [];
    const sorted = by === column.title ? (way > 0 ? 'ascending' : 'descending') : 'none';
    const class_ = column.end ? 'end' : '';
    if (!column.sort) return h('div', { role: 'columnheader', class: class_ }, column.title);
    return h('div', { role: 'columnheader', 'aria-sort': sorted, class: class_ },
      h('button.sort', { type: 'button', onclick: () => this.sortBy(column) }, column.title, h('span.arrow', { 'aria-hidden': 'true' }, sorted === 'none' ? '' : way > 0 ? ' ↑' : ' ↓')));
  }

  sortBy(column) {
    const [by, way] = this.sorting ?? [];
    this.sorting = [column.title, by === column.title ? -way : column.end ? -1 : 1];
    this.set(this.rows);
    this.layOut();
  }

  /** Show other rows. Where one is, in the list and on the screen, stays as far as it can. */
  set(rows) {
    this.rows = rows;
    this.shown = rows;
    const column = this.sorting && this.all.find((candidate) => candidate.title === this.sorting[0]);
    if (column) {
      const way = this.sorting[1];
      const keyed = rows.map((row) => [column.sort(row), row]);
      keyed.sort(([a], [b]) => (a === b ? 0 : (a ?? -Infinity) < (b ?? -Infinity) ? -way : way));
      this.shown = keyed.map(([, row]) => row);
    }
    this.drawn.clear();
    this.draw();
  }

  /** Rows by their number, for lists that grow at the top faster than they could be copied. */
  setVirtual(length, at) {
    this.shown = { length, at };
    this.drawn.clear();
    this.draw();
  }

  row(index) {
    return Array.isArray(this.shown) ? this.shown[index] : this.shown.at(index);
  }

  draw() {
    const total = this.shown.length;
    this.spacer.style.height = `${total * this.height}px`;
    // The head is as wide as the rows are beside the scroll bar, if there is one.
    this.element.style.setProperty('--bar', `${this.body.offsetWidth - this.body.clientWidth}px`);
    this.empty.hidden = total > 0;
    if (!total) this.empty.textContent = this.options.empty ?? 'Nothing here yet.';
    const first = Math.max(Math.floor(this.body.scrollTop / this.height) - MORE, 0);
    const last = Math.min(Math.ceil((this.body.scrollTop + this.body.clientHeight) / this.height) + MORE, total);
    const before = this.drawn;
    this.drawn = new Map();
    const elements = [];
    for (let index = first; index < last; index += 1) {
      const element = before.get(index) ?? this.rowElement(index);
      this.drawn.set(index, element);
      elements.push(element);
    }
    this.element.setAttribute('aria-rowcount', String(total));
    const now = this.spacer.children;
    if (elements.length !== now.length || elements.some((element, index) => element !== now[index])) this.spacer.replaceChildren(...elements);
  }

  rowElement(index) {
    const row = this.row(index);
    const element = h('div.vt-row', {
      role: 'row',
      'aria-rowindex': index + 1,
      id: `${this.options.label.replace(/\W/g, '-')}-${index}`,
      class: `${index === this.active ? 'active' : ''} ${this.options.open ? 'opens' : ''} ${this.options.rowClass?.(row) ?? ''}`,
      style: { transform: `translateY(${index * this.height}px)`, height: `${this.height}px` },
      onclick: (event) => {
        if (event.target.closest('a, button') || String(getSelection())) return;
        this.choose(index, false);
        this.options.open?.(row);
      },
    }, this.columns.map((column) => h('div.vt-cell', { role: 'cell', class: column.end ? 'end' : '' }, column.render(row))));
    return element;
  }

  choose(index, scroll = true) {
    this.active = Math.min(Math.max(index, 0), this.shown.length - 1);
    if (scroll) {
      const top = this.active * this.height;
      if (top < this.body.scrollTop) this.body.scrollTop = top;
      else if (top + this.height > this.body.scrollTop + this.body.clientHeight) this.body.scrollTop = top + this.height - this.body.clientHeight;
    }
    this.drawn.clear();
    this.draw();
    this.body.setAttribute('aria-activedescendant', `${this.options.label.replace(/\W/g, '-')}-${this.active}`);
  }

  key(event) {
    const page = Math.max(Math.floor(this.body.clientHeight / this.height) - 1, 1);
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves && this.shown.length) {
      event.preventDefault();
      this.choose(moves[event.key] === Infinity ? this.shown.length - 1 : moves[event.key] === -Infinity ? 0 : this.active + moves[event.key]);
    } else if (event.key === 'Enter' && this.active >= 0 && this.active < this.shown.length) {
      event.preventDefault();
      this.options.open?.(this.row(this.active));
    }
  }

  focus() {
    this.body.focus();
  }

  /** Lead from the field that searches it into the list. */
  follow(search) {
    search.addEventListener('keydown', (event) => {
      if (event.key !== 'ArrowDown' && event.key !== 'Enter') return;
      event.preventDefault();
      this.focus();
      this.choose(0);
    });
  }

  close() {
    this.watcher.disconnect();
    this.narrow.removeEventListener('change', this.turned);
  }
}
