// Numbers, sizes and times for people.

const whole = new Intl.NumberFormat('en');
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });
const second = { hour: '2-digit', minute: '2-digit', second: '2-digit' };
const clock = new Intl.DateTimeFormat('en-GB', { ...second, fractionalSecondDigits: 3 });
const coarse = new Intl.DateTimeFormat('en-GB', second);
const day = new Intl.DateTimeFormat('en-GB', { day: '2-digit', month: 'short' });
const precise = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', year: 'numeric', ...second, fractionalSecondDigits: 3 });
const full = new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'medium' });

/** 1,234,567 */
export const count = (value) => (value === null || value === undefined ? '–' : whole.format(value));

/** 1.23M, and whole numbers while they are short. */
export const brief = (value) => {
  if (value === null || value === undefined) return '–';
  return Math.abs(value) < 10000 ? whole.format(Math.round(value)) : short.format(value);
};

/** 1.2k/s */
export const rate = (value) => {
  if (value === null || value === undefined) return '–';
  if (value === 0) return '0/s';
  return `${value < 10 ? value.toPrecision(2) : value < 1000 ? Math.round(value) : short.format(value)}/s`;
};

/** 12.3 MiB */
export const bytes = (value) => {
  if (value === null || value === undefined) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${Math.round(size)} B` : `${size < 10 ? size.toFixed(2) : size < 100 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
};

/** 3 s ago */
export const ago = (milliseconds) => {
  if (!milliseconds) return 'never';
  const seconds = (Date.now() - milliseconds) / 1000;
  if (seconds < 0) return 'ahead of now';
  if (seconds < 2) return 'now';
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
};

/** 14:03:07.123, or 16 Nov 14:03:07 where it was another day: as much as a column has room for. */
export const moment = (milliseconds) => {
  const when = new Date(milliseconds);
  if (Number.isNaN(when.valueOf())) return '–';
  const today = new Date();
  return when.toDateString() === today.toDateString() ? clock.format(when) : `${day.format(when)} ${coarse.format(when)}`;
};

/** 16 Nov 2026, 14:03:07 */
export const date = (milliseconds) => {
  const when = new Date(milliseconds);
  return !milliseconds || Number.isNaN(when.valueOf()) ? '–' : full.format(when);
};

/** 16 Nov 2026, 14:03:07.123 */
export const exactly = (milliseconds) => {
  const when = new Date(milliseconds);
  return Number.isNaN(when.valueOf()) ? '–' : precise.format(when);
};

/** 1 topic, 2 topics; 1 stretch, 2 stretches */
export const plural = (value, noun, nouns = `${noun}s`) => `${count(value)} ${value === 1 ? noun : nouns}`;

const DEEPEST = 200;

/**
 * JSON with line breaks, token by token: what a browser reads as a number has 53 bits, and would be another one after that.
 * Throws for what is no JSON.
 */
export function indented(text) {
  JSON.parse(text);
  const tokens = text.match(/"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s"{}[\],:]+/g);
  const lines = [];
  let depth = 0;
  const line = () => `\n${'  '.repeat(depth)}`;
  tokens.forEach((token, index) => {
    if (token === '{' || token === '[') {
      depth += 1;
      if (depth > DEEPEST) throw new RangeError('nobody reads that deep');
      lines.push(token, /^[}\]]$/.test(tokens[index + 1]) ? '' : line());
    } else if (token === '}' || token === ']') {
      depth -= 1;
      lines.push(/^[{[]$/.test(tokens[index - 1]) ? '' : line(), token);
    } else lines.push(token, token === ',' ? line() : token === ':' ? ' ' : '');
  });
  return lines.join('');
}
