// Dialogs and short messages.

import { fill, h } from './dom.js';

/** A dialog; `body(close)` makes what is in it. Escape and a click beside it close it. */
export function dialog(title, body, { wide = false } = {}) {
  const close = () => element.close();
  const element = h(`dialog.dialog${wide ? '.broad' : ''}`, {
    'aria-label': title,
    onclose: () => element.remove(),
    onclick: (event) => {
      if (event.target === element) close();
    },
  });
  fill(element,
    h('div.dialog-inner', {},
      h('div.dialog-head', {}, h('h2', {}, title), h('button.icon', { type: 'button', 'aria-label': 'Close', onclick: close }, '×')),
      body(close)));
  document.body.append(element);
  element.showModal();
  return element;
}

/** A message that goes by itself. */
export function toast(text, kind = 'good') {
  const element = h(`div.toast.${kind}`, { role: 'status' }, text);
  document.getElementById('toasts').append(element);
  setTimeout(() => element.remove(), kind === 'bad' ? 8000 : 4000);
}

/** Do something, and tell when it fails. */
export async function trying(act) {
  try {
    return await act();
  } catch (error) {
    toast(error.message, 'bad');
    return undefined;
  }
}

/** A form in a dialog: what is wrong is told in it, and it closes when the deed is done. */
export function form(title, fields, { action, danger = false, act, wide = false }) {
  return dialog(title, (close) => {
    const problem = h('p.problem', { role: 'alert', hidden: true });
    const button = h(`button.${danger ? 'danger' : 'primary'}`, { type: 'submit' }, action);
    return h('form.form', {
      method: 'dialog',
      onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        problem.hidden = true;
        try {
          if ((await act()) !== false) close();
        } catch (error) {
          problem.textContent = error.message;
          problem.hidden = false;
        } finally {
          button.disabled = false;
        }
      },
    }, fields, problem, h('div.buttons', {}, h('button', { type: 'button', onclick: close }, 'Cancel'), button));
  }, { wide });
}

/** A field of a form. */
export const field = (label, control, hint) => h('label.field', {}, h('span.label', {}, label), control, hint && h('span.hint', {}, hint));
