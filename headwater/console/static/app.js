// The page: who is looking, which page is shown, what the keys do.

import { get, post, remove, Stream } from './api.js';
import { dialog, toast } from './dialog.js';
import { fill, h } from './dom.js';
import { cluster } from './pages/cluster.js';
import { group } from './pages/group.js';
import { groups } from './pages/groups.js';
import { messages } from './pages/messages.js';
import { overview } from './pages/overview.js';
import { pipelines } from './pages/pipelines.js';
import { segments } from './pages/segments.js';
import { steward } from './pages/steward.js';
import { topic } from './pages/topic.js';
import { topics } from './pages/topics.js';

const ROUTES = [
  [/^$/, overview],
  [/^topics$/, topics],
  [/^topics\/([^/]+)$/, topic],
  [/^topics\/([^/]+)\/messages$/, messages],
  [/^topics\/([^/]+)\/segments$/, segments],
  [/^groups$/, groups],
  [/^groups\/([^/]+)$/, group],
  [/^pipelines$/, pipelines],
  [/^steward$/, steward],
  [/^cluster$/, cluster],
];
const KEYS = [
  ['/', 'Search'], ['g then o', 'Overview'], ['g then t', 'Topics'], ['g then g', 'Groups'], ['g then p', 'Pipelines'],
  ['g then s', 'Steward'], ['g then c', 'Cluster'], ['↑ ↓ or j k', 'Move in a list'], ['Enter', 'Open'],
  ['Space', 'Pause and resume a live tail'], ['Esc', 'Close what is open'], ['d', 'Light or dark'], ['?', 'This help'],
];
const GO = { o: '', t: 'topics', g: 'groups', p: 'pipelines', s: 'steward', c: 'cluster' };

const main = document.getElementById('main');
let session = null;
let shown = null;
let events = null;

// Pages.

/** The page that the address names; its parameters come after a question mark. */
function route() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  const parts = path.replace(/\/$/, '');
  for (const [pattern, page] of ROUTES) {
    const match = pattern.exec(parts);
    if (match) return { page, given: match.slice(1).map(decoded), query: new URLSearchParams(query ?? ''), parts };
  }
  return { page: nothingHere, given: [], query: new URLSearchParams(), parts };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  if (!session?.known) return;
  const { page, given, query, parts } = route();
  leave();
  shown = page({ session, query }, ...given);
  fill(main, shown.element);
  document.title = `${shown.title} · Headwater`;
  for (const link of document.querySelectorAll('#nav a')) {
    const current = link.dataset.page === parts.split('/')[0];
    if (current) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  scrollTo(0, 0);
  refresh();
}

/** End what is shown. A dialog belongs to its page: it would hold the next one still. */
function leave() {
  for (const open of document.querySelectorAll('dialog[open]')) open.close();
  shown?.close?.();
  shown = null;
}

function nothingHere() {
  return { title: 'Nothing here', element: h('div.empty', {}, h('h1', {}, 'There is no such page'), h('a', { href: '#/' }, 'To the overview')) };
}

let refreshing = null;
/** Have the page look again; not twice at once. */
async function refresh() {
  if (refreshing === shown || !shown?.refresh) return;
  const mine = shown;
  refreshing = mine;
  try {
    await mine.refresh();
    if (shown === mine && !main.contains(mine.element)) fill(main, mine.element); // what could not be shown can be now
    tellState('live');
  } catch (error) {
    // The problems of a page that was left meanwhile are nobody's any more.
    if (error.status !== 401 && shown === mine) problem(error);
  } finally {
    if (refreshing === mine) refreshing = null;
  }
}

function problem(error) {
  // A refusal, or a missing page, is an answer too.
  tellState(error.status >= 400 && error.status < 500 ? 'live' : 'broken', error.message);
  if (shown && !shown.element.dataset.drawn && error.status !== 0) {
    fill(main, h('div.empty', {}, h('h1', {}, error.status === 404 ? 'Not found' : 'It cannot be shown'), h('p', {}, error.message), h('a', { href: '#/' }, 'To the overview')));
  }
}

function tellState(state, text = '') {
  const words = { live: 'live', open: 'live', broken: 'not connected' };
  const element = document.getElementById('state');
  fill(element, h(`span.dot.${state === 'broken' ? 'bad' : 'good'}`, {}), h('span', {}, words[state] ?? state));
  element.title = text || 'The page follows the store by itself';
}

// The user.

async function begin() {
  const launch = /^#launch=(.+)$/.exec(location.hash);
  if (launch) {
    history.replaceState(null, '', '#/');
    try {
      await post('/api/session', { token: launch[1] });
    } catch (error) {
      toast(error.message, 'bad');
    }
  }
  try {
    session = await get('/api/session');
  } catch (error) {
    fill(main, h('div.empty', {}, h('h1', {}, 'The console does not answer'), h('p', {}, error.message)));
    setTimeout(begin, 3000);
    return;
  }
  document.body.classList.toggle('unknown', !session.known);
  if (!session.known) {
    fill(main, welcome());
    return;
  }
  fill(document.getElementById('where'), h('span.store', { title: session.store }, h('bdi', { dir: 'ltr' }, session.store)),
    h(`span.tag${session.write ? '.warn' : ''}`, {}, session.write ? 'read and write' : 'read only'),
    session.user && h('span.tag', {}, session.user));
  document.getElementById('leave').hidden = false;
  events ??= new Stream(() => '/api/events', { looked: refresh, quiet: () => {} }, (state) => tellState(state));
  events.start();
  show();
}

/** For those who are not known: how to get in. */
function welcome() {
  if (!session.by_token) {
    return h('div.empty', {}, h('h1', {}, 'Open the link in the terminal'),
      h('p', {}, 'When the console started, it printed a link that begins with this page’s address and ends in a token. Open that link.'));
  }
  const input = h('input', { type: 'password', name: 'token', autocomplete: 'off', placeholder: 'hw_…', required: true, 'aria-label': 'Token', autofocus: true });
  const wrong = h('p.problem', { role: 'alert', hidden: true });
  return h('form.welcome', {
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        await post('/api/session', { token: input.value });
        await begin();
      } catch (error) {
        wrong.textContent = error.message;
        wrong.hidden = false;
      }
    },
  }, h('h1', {}, 'Headwater'), h('p', {}, 'Sign in with a token of the broker. Its rights apply here.'), input, wrong, h('button.primary', { type: 'submit' }, 'Sign in'));
}

addEventListener('unknown', () => {
  if (session?.known) {
    events?.stop();
    session.known = false;
    leave();
    begin();
  }
});
addEventListener('hashchange', () => (location.hash.startsWith('#launch=') ? begin() : location.hash === '#main' ? main.focus() : show()));
document.getElementById('leave').addEventListener('click', async () => {
  await remove('/api/session').catch(() => {});
  location.hash = '#/';
  location.reload();
});

// Light and dark.

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
}

function changeTheme() {
  document.documentElement.dataset.theme = dark() ? 'light' : 'dark';
  localStorage.setItem('headwater-theme', document.documentElement.dataset.theme);
  dispatchEvent(new Event('theme'));
}

document.getElementById('theme').addEventListener('click', changeTheme);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => dispatchEvent(new Event('theme')));

// Keys.

function help() {
  dialog('Keyboard', () => h('dl.keys', {}, KEYS.map(([key, action]) => [h('dt', {}, key.split(' ').map((word) => (/^(then|or)$/.test(word) ? ` ${word} ` : h('kbd', {}, word)))), h('dd', {}, action)])));
}

document.getElementById('help').addEventListener('click', help);
let going = 0;
addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  if (event.key === 'Escape' && shown?.escape?.()) return;
  if (event.target.closest('input, textarea, select, [contenteditable]')) return;
  if (Date.now() - going < 1200 && event.key in GO) {
    going = 0;
    location.hash = `#/${GO[event.key]}`;
  } else if (event.key === 'g') going = Date.now();
  else if (event.key === '?') help();
  else if (event.key === 'd') changeTheme();
  else if (event.key === '/') {
    event.preventDefault();
    document.querySelector('main input[type=search]')?.focus();
  } else if (shown?.key?.(event) || intoList(event)) event.preventDefault();
});

/** The keys that move in a list lead into the one of the page, if they were meant for nothing else. */
function intoList(event) {
  const list = main.querySelector('.fill .vt-body');
  if (!list || !['j', 'k', 'ArrowDown', 'ArrowUp'].includes(event.key) || ![document.body, main].includes(event.target)) return false;
  list.focus();
  list.dispatchEvent(new KeyboardEvent('keydown', { key: event.key }));
  return true;
}

begin();
