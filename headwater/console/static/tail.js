// A live tail: what has come, without a gap, over pauses, lost connections and hidden pages.

import { part, Stream, withQuery } from './api.js';

const MOST = 50000;

/** Keeps the last records that came, and the place behind them. `onChange(added)` is called at most once a frame. */
export class Tail {
  constructor(topic, query, onChange) {
    this.topic = topic;
    this.query = query;
    this.onChange = onChange;
    this.clear();
    this.stream = new Stream(() => this.address(), {
      records: (page, cursor) => this.take(page, cursor),
      note: (note) => this.noted(note),
      quiet: () => {},
      failed: (failure) => this.fail(failure.error),
    }, (state) => {
      this.open = state === 'open';
      this.change();
    });
  }

  clear() {
    this.rows = new Array(MOST);
    this.seen = 0;
    this.lookedAt = 0;
    this.cursor = '';
    this.next = new Map();
    this.missing = 0;
    this.notes = [];
    this.error = null;
    this.added = 0;
    this.open = false;
  }

  address() {
    const { from, ...rest } = this.query();
    return withQuery(`/api/topics/${part(this.topic)}/tail`, this.cursor ? { ...rest, at: this.cursor } : { ...rest, from });
  }

  start() {
    this.error = null;
    this.stream.start();
  }

  stop() {
    this.stream.stop();
  }

  close() {
    this.stream.close();
  }

  /** Begin with a page of the newest: what comes after it comes by the stream, without a gap. */
  begin(page) {
    for (const stretch of page.damage) this.notes.push(`${stretch.partition}: ${stretch.offset} to ${stretch.next_offset - 1}: ${stretch.reason}`);
    this.take({ rows: page.rows.reverse(), looked_at: page.looked_at }, page.began);
  }

  take(page, cursor) {
    for (const row of page.rows) {
      const expected = this.next.get(row.p);
      if (expected !== undefined && row.o !== expected) this.missing += Math.abs(row.o - expected);
      this.next.set(row.p, row.o + 1);
      this.rows[this.seen % MOST] = row;
      this.seen += 1;
      this.added += 1;
    }
    this.lookedAt += page.looked_at;
    this.cursor = cursor;
    this.change();
  }

  noted(note) {
    this.notes.push(note.kind === 'removed'
      ? `Records ${note.offset} to ${note.next - 1} of partition ${note.partition} were removed before they were seen.`
      : note.reason);
    this.next.delete(note.partition);
    this.change();
  }

  fail(error) {
    this.error = error;
    this.stop();
    this.change();
  }

  change() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = undefined;
      const added = this.added;
      this.added = 0;
      this.onChange(added);
    });
  }

  /** How many are kept. */
  get kept() {
    return Math.min(this.seen, MOST);
  }

  /** The newest but so many. */
  at(index) {
    return this.rows[(this.seen - 1 - index) % MOST];
  }

  /** How many records of these partitions are behind the place where it is. */
  behind(partitions) {
    const at = new Map(this.cursor.split(',').filter(Boolean).map((pair) => pair.split(':').map(Number)));
    return partitions.reduce((sum, partition) => sum + (at.has(partition.number) ? Math.max(partition.end - at.get(partition.number), 0) : 0), 0);
  }
}
