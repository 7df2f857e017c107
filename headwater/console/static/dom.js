// Elements. All text is put in as text: no string of this page, and none from a store, ever becomes markup.

const PROPERTIES = new Set(['value', 'checked', 'disabled', 'hidden', 'selected', 'htmlFor', 'className', 'tabIndex']);

/** An element: h('a.link', {href, onclick, dataset}, 'text', child, [children]). */
export function h(tag, attributes, ...children) {
  const [name, ...classes] = tag.split('.');
  const element = document.createElement(name || 'div');
  if (classes.length) element.className = classes.join(' ');
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'dataset') Object.assign(element.dataset, value);
    else if (key === 'class') element.classList.add(...String(value).split(' ').filter(Boolean));
    else if (key === 'style') for (const [rule, to] of Object.entries(value)) element.style.setProperty(rule, to);
    else if (PROPERTIES.has(key)) element[key] = value;
    else element.setAttribute(key, value === true ? '' : String(value));
  }
  add(element, children);
  return element;
}

/** An element of a drawing. */
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes ?? {})) element.setAttribute(key, String(value));
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(4)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Put other children into an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** The same element as long as nothing about it has changed: what is selected in it, or has the focus, stays so. */
export function same(element, key, make) {
  const text = JSON.stringify(key);
  if (element.lastKey !== text) {
    element.lastKey = text;
    fill(element, make());
  }
  return element;
}

/** What is typed, a moment after the last key. */
export function afterTyping(act, milliseconds = 250) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), milliseconds);
  };
}
