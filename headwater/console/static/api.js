// Requests of the page to the console, and events from it.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      credentials: 'same-origin',
      headers: body === undefined && method === 'GET' ? {} : { 'Content-Type': 'application/json' },
      body: method === 'GET' ? undefined : JSON.stringify(body ?? {}),
    });
  } catch {
    throw new Refused(0, 'the console does not answer: is it still running?');
  }
  const document_ = await answer.json().catch(() => ({}));
  if (answer.status === 401) dispatchEvent(new CustomEvent('unknown'));
  if (!answer.ok) throw new Refused(answer.status, document_.error ?? `the console answered ${answer.status}`);
  return document_;
}

export const get = (path, query) => ask('GET', withQuery(path, query));
export const post = (path, body) => ask('POST', path, body);
export const patch = (path, body) => ask('PATCH', path, body);
export const remove = (path, body) => ask('DELETE', path, body);

/** An address with parameters; those that say nothing are left out. */
export function withQuery(path, query) {
  const said = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return said.length ? `${path}?${new URLSearchParams(said)}` : path;
}

/** A part of an address. */
export const part = (text) => encodeURIComponent(text);

/**
 * A stream of events that rests while nobody can see the page: browsers allow six connections to a host, over all tabs.
 * `address` is asked each time, so that it can say where the last event was.
 */
export class Stream {
  constructor(address, handlers, onState = () => {}) {
    this.address = address;
    this.handlers = handlers;
    this.onState = onState;
    this.wanted = false;
    this.seen = () => this.settle();
    document.addEventListener('visibilitychange', this.seen);
  }

  start() {
    this.wanted = true;
    this.settle();
  }

  stop() {
    this.wanted = false;
    this.settle();
  }

  close() {
    this.stop();
    document.removeEventListener('visibilitychange', this.seen);
  }

  settle() {
    const now = this.wanted && document.visibilityState === 'visible';
    if (now && !this.source) {
      this.source = new EventSource(this.address());
      this.source.onopen = () => this.onState('open');
      this.source.onerror = () => this.broken();
      for (const [name, act] of Object.entries(this.handlers)) {
        this.source.addEventListener(name, (event) => act(JSON.parse(event.data), event.lastEventId));
      }
    } else if (!now && this.source) {
      this.source.close();
      this.source = undefined;
    }
  }

  broken() {
    this.onState('broken');
    // A browser goes on by itself after a lost connection, but not after a refusal: that is tried again here, unless the
    // session is over.
    if (this.source?.readyState === EventSource.CLOSED) {
      this.source.close();
      this.source = undefined;
      get('/api/session').then(({ known }) => known || dispatchEvent(new CustomEvent('unknown')), () => {});
      setTimeout(() => this.settle(), 2000);
    }
  }
}
