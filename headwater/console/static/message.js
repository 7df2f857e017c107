// One message, whole, beside the list; and making one by hand.

import { get, part, post } from './api.js';
import { field, form, toast, trying } from './dialog.js';
import { fill, h } from './dom.js';
import { bytes, exactly, indented } from './format.js';

/** JSON with line breaks, where it is JSON; all else as it is. */
function pretty(shown) {
  if (shown?.kind === 'hex') return shown.text.replace(/((?:[0-9a-f]{2} ?){16})/g, '$1\n');
  try {
    return shown && ['json', 'row', 'msgpack'].includes(shown.kind) && !shown.cut ? indented(shown.text) : shown?.text;
  } catch {
    return shown.text;
  }
}

async function copy(text) {
  await trying(async () => {
    await navigator.clipboard.writeText(text);
    toast('Copied.');
  });
}

const block = (title, shown) => h('section.block', {},
  h('div.block-head', {}, h('h3', {}, title), shown && h('span.tag', {}, shown.kind), shown && h('span.muted', {}, bytes(shown.size)),
    shown && h('button.small', { type: 'button', onclick: () => copy(pretty(shown)) }, 'Copy')),
  shown?.size ? h('pre', { tabIndex: 0 }, pretty(shown)) : h('p.muted', {}, shown ? 'empty' : title === 'Value' ? 'null: a delete marker' : 'none'),
  shown?.cut && h('p.note', {}, 'Only the first part is shown: download it to get all of it.'));

/** The drawer for a message of a topic. */
export class Drawer {
  constructor(topic, decode, onClose) {
    this.topic = topic;
    this.decode = decode;
    this.element = h('aside.drawer', { hidden: true, 'aria-label': 'Message' });
    this.onClose = onClose;
  }

  async open(row) {
    this.row = row;
    this.element.hidden = false;
    await trying(async () => {
      const message = await get(`/api/topics/${part(this.topic)}/messages/${row.p}/${row.o}`, { decode: this.decode() });
      if (this.row !== row) return;
      fill(this.element,
        h('div.drawer-head', {}, h('h2', {}, `${this.topic}/${message.p} @ ${message.o}`), h('button.icon', { type: 'button', 'aria-label': 'Close', onclick: () => this.close() }, '×')),
        h('p.muted', { title: `${message.ns} ns since 1970` }, exactly(message.t)),
        block('Key', message.k), block('Value', message.v),
        message.h.length ? h('section.block', {}, h('h3', {}, 'Headers'), h('dl.headers', {}, message.h.map(([name, value]) => [h('dt', {}, name), h('dd', {}, value ? value.text : 'null')]))) : null);
    });
  }

  close() {
    if (this.element.hidden) return false;
    this.element.hidden = true;
    this.row = null;
    this.onClose?.();
    return true;
  }
}

/** A form that writes one record; `written` is called when it is. */
export function produce(topic, about, written) {
  const kinds = (first) => h('select', { 'aria-label': `How the ${first} is written` }, ['text', 'json', 'hex'].map((kind) => h('option', { value: kind }, kind === 'json' ? 'JSON' : kind === 'hex' ? 'hexadecimal' : 'text')));
  const keyKind = kinds('key');
  const valueKind = kinds('value');
  const key = h('input', { name: 'key', placeholder: 'none' });
  const value = h('textarea', { name: 'value', rows: 8, spellcheck: 'false', autofocus: true });
  const nothing = h('input', { type: 'checkbox' });
  const partition = h('select', { name: 'partition' }, h('option', { value: '' }, 'by the key'), about.partitions.slice(0, 1000).map((row) => h('option', { value: String(row.number) }, String(row.number))));
  const headers = h('textarea', { name: 'headers', rows: 2, spellcheck: 'false', placeholder: 'trace: 1' });
  if (!about.raw) {
    valueKind.value = 'json';
    valueKind.disabled = true;
    value.value = JSON.stringify(Object.fromEntries(about.schemas.at(-1).columns.map((column) => [column.name, null])), null, 2);
  }
  form(`New record in ${topic}`, [
    field('Value', h('div.stack', {}, value, h('div.row', {}, valueKind, h('label.check', {}, nothing, 'null (a delete marker)')))),
    field('Key', h('div.row', {}, key, keyKind)),
    h('div.pair', {}, field('Partition', partition), field('Headers', headers, 'One a line: name: value')),
  ], {
    action: 'Write',
    wide: true,
    act: async () => {
      const said = Object.fromEntries(headers.value.split('\n').filter((line) => line.trim()).map((line) => {
        const at = line.indexOf(':');
        if (at < 1) throw new Error(`“${line}” is no header: write name: value`);
        return [line.slice(0, at).trim(), { as: 'text', text: line.slice(at + 1).trim() }];
      }));
      const receipt = await post(`/api/topics/${part(topic)}/messages`, {
        key: key.value ? { as: keyKind.value, text: key.value } : null,
        value: nothing.checked ? null : { as: valueKind.value, text: value.value },
        headers: said,
        partition: partition.value === '' ? null : Number(partition.value),
      });
      toast(`Written to partition ${receipt.partition} at offset ${receipt.offset}.`);
      written();
    },
  });
}
