// Sizes, rates, and everything that needs attention.

import { get } from '../api.js';
import { History } from '../chart.js';
import { fill, h, same } from '../dom.js';
import { brief, bytes, count, plural, rate } from '../format.js';
import { bar, card, figure, groupLink, heading, lag, topicLink, waiting } from '../parts.js';

export function overview() {
  const figures = h('div.figures', {});
  const attention = h('div.attention', {});
  const lists = h('div.columns', {});
  const charts = new History({ of: 'store' }, [
    { title: 'Records', format: 'records', pick: (name) => name === 'records/s' },
    { title: 'Bytes', format: 'bytes', pick: (name) => name === 'bytes/s' },
    { title: 'Lag of all groups', format: 'count', pick: (name) => name === 'lag' },
    { title: 'Size on disk', format: 'size', pick: (name) => name === 'bytes' },
  ]);
  const body = h('div', {}, waiting('Looking at the store…'));
  const element = h('div', {}, heading('Overview'), body);

  function draw(found) {
    if (!body.contains(figures)) fill(body, attention, figures, charts.element, lists);
    element.dataset.drawn = 'yes';
    same(attention, [found.attention, found.stewarded, found.topics], () => [
      !found.topics && h('div.hint-box', {}, h('b', {}, 'This store is empty.'), ' Create a topic here with ', h('code', {}, '--write'), ', or in a program: ', h('code', {}, 'store.create_topic("orders")'), '.'),
      found.attention.length
        ? h('ul.attention-list', {}, found.attention.slice(0, 12).map((one) => h(`li.${one.level}`, {}, h('span.mark', { 'aria-hidden': 'true' }, one.level === 'bad' ? '✕' : '!'), one.link ? h('a', { href: `#/${one.link}` }, one.text) : one.text)),
          found.attention.length > 12 && h('li.more', {}, `and ${found.attention.length - 12} more`))
        : h('p.all-well', {}, h('span.mark', { 'aria-hidden': 'true' }, '✓'), 'Nothing needs attention.'),
    ]);
    fill(figures,
      figure('Records in', rate(found.records_per_second), `${bytes(found.bytes_per_second)}/s`),
      figure('Records', brief(found.records), bytes(found.bytes)),
      figure('Topics', count(found.topics), plural(found.partitions, 'partition')),
      figure('Groups', count(found.groups), plural(found.members, 'member')),
      figure('Lag', brief(found.lag), found.lag ? 'not acknowledged' : 'everything is read', found.lag > 10000 ? 'warn' : ''),
      found.disk && figure('Disk', `${Math.round((100 * found.disk.used) / found.disk.total)} %`, `${bytes(found.disk.free)} free`));
    const fastest = Math.max(...found.busiest.map((one) => one.records_per_second), 1);
    const furthest = Math.max(...found.behind.map((one) => one.lag), 1);
    fill(lists,
      card('Busiest topics', found.busiest.length ? h('ul.ranking', {}, found.busiest.map((one) => h('li', {}, h('a', { href: topicLink(one.name) }, one.name), bar(one.records_per_second, fastest), h('b', {}, rate(one.records_per_second))))) : h('p.muted', {}, 'Nobody writes at the moment.')),
      card('Groups that are behind', found.behind.length ? h('ul.ranking', {}, found.behind.map((one) => h('li', {}, h('a', { href: groupLink(one.name) }, one.name), bar(one.lag, furthest), h('b', {}, lag(one.lag))))) : h('p.muted', {}, 'Every group has read everything.')));
  }

  return {
    title: 'Overview',
    element,
    async refresh() {
      const found = await get('/api/overview');
      if (found.ready) draw(found);
      else if (found.error) throw new Error(found.error);
      charts.refresh();
    },
    close: () => charts.close(),
  };
}
