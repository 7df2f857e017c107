// Parts that several pages have in common.

import { h } from './dom.js';
import { brief, bytes, count } from './format.js';

/** A number with what it is. */
export const figure = (label, value, hint, kind = '') => h(`div.figure${kind ? `.${kind}` : ''}`, {}, h('span.label', {}, label), h('span.value', {}, value), hint && h('span.hint', {}, hint));

/** The head of a page: where one is, and what can be done. */
export const heading = (title, trail, ...actions) => h('div.heading', {},
  h('div', {}, trail?.length ? h('nav.trail', { 'aria-label': 'Where you are' }, trail.map(([name, link]) => [h('a', { href: link }, name), h('span', { 'aria-hidden': 'true' }, ' / ')])) : null, h('h1', {}, title)),
  h('div.actions', {}, actions));

/** The tabs of a topic. */
export function topicTabs(name, now) {
  const tabs = [['Topic', ''], ['Messages', '/messages'], ['Files', '/segments']];
  return h('nav.tabs', { 'aria-label': 'Parts of the topic' }, tabs.map(([title, path]) => h('a', { href: `${topicLink(name)}${path}`, 'aria-current': title === now ? 'page' : null }, title)));
}

export const topicLink = (name) => `#/topics/${encodeURIComponent(name)}`;
export const groupLink = (name) => `#/groups/${encodeURIComponent(name)}`;

/** How far behind, in words and as a colour. */
export function lag(value) {
  if (value === null || value === undefined) return h('span.muted', {}, '–');
  return h(`span.lag${value === 0 ? '.none' : value > 10000 ? '.much' : ''}`, { title: count(value) }, brief(value));
}

/** A bar that shows a part of a whole. */
export const bar = (value, most, title) => h('span.bar', { title }, h('span', { style: { width: `${most > 0 ? Math.max((100 * value) / most, value ? 2 : 0) : 0}%` } }));

export const size = (value) => h('span', { title: `${count(value)} bytes` }, bytes(value));

/** A table that is short. columns: {title, end?, wide?}. */
export const grid = (label, columns, rows, empty = 'Nothing here yet.') => h('div.grid-wrap', {}, rows.length
  ? h('table.grid', { 'aria-label': label }, h('thead', {}, h('tr', {}, columns.map((column) => h('th', { scope: 'col', class: `${column.end ? 'end' : ''} ${column.wide ? 'wide' : ''}` }, column.title)))),
    h('tbody', {}, rows.map((row) => h('tr', {}, row.map((cell, index) => h('td', { class: `${columns[index].end ? 'end' : ''} ${columns[index].wide ? 'wide' : ''}` }, cell))))))
  : h('p.muted', {}, empty));

/** A card with a heading. */
export const card = (title, ...children) => h('section.card', {}, title && h('h2', {}, title), children);

/** What holds true of a page while it is being looked at for the first time. */
export const waiting = (text = 'Looking…') => h('p.waiting', {}, text);
