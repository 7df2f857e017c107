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

  function draw(overview) {
    if (!body.contains(figures)) fill(body, attention, figures, charts.element, lists);
    element.dataset.drawn = 'yes';
    same(attention, [overview.attention, overview.stewarded, overview.topics], () => [
      !overview.topics && h('div.hint-box', {}, h('b', {}, 'This store is empty.'), ' Create a topic here with ', h('code', {}, '--write'), ', or in a program: ', h('code', {}, 'store.create_topic("orders")'), '.'),
      overview.attention.length
        ? h('ul.attention-list', {}, overview.attention.slice(0, 12).map((problem) => h(`li.${problem.level}`, {}, h('span.mark', { 'aria-hidden': 'true' }, problem.level === 'bad' ? '✕' : '!'), problem.link ? h('a', { href: `#/${problem.link}` }, problem.text) : problem.text)),
          overview.attention.length > 12 && h('li.more', {}, `and ${overview.attention.length - 12} more`))
        : h('p.all-well', {}, h('span.mark', { 'aria-hidden': 'true' }, '✓'), 'Nothing needs attention.'),
    ]);
    fill(figures,
      figure('Records in', rate(overview.records_per_second), `${bytes(overview.bytes_per_second)}/s`),
      figure('Records', brief(overview.records), bytes(overview.bytes)),
      figure('Topics', count(overview.topics), plural(overview.partitions, 'partition')),
      figure('Groups', count(overview.groups), plural(overview.members, 'member')),
      figure('Lag', brief(overview.lag), overview.lag ? 'not acknowledged' : 'everything is read', overview.lag > 10000 ? 'warn' : ''),
      overview.disk && figure('Disk', `${Math.round((100 * overview.disk.used) / overview.disk.total)} %`, `${bytes(overview.disk.free)} free`));
    const fastest = Math.max(...overview.busiest.map((topic) => topic.records_per_second), 1);
    const furthest = Math.max(...overview.behind.map((group) => group.lag), 1);
    fill(lists,
      card('Busiest topics', overview.busiest.length ? h('ul.ranking', {}, overview.busiest.map((topic) => h('li', {}, h('a', { href: topicLink(topic.name) }, topic.name), bar(topic.records_per_second, fastest), h('b', {}, rate(topic.records_per_second))))) : h('p.muted', {}, 'Nobody writes at the moment.')),
      card('Groups that are behind', overview.behind.length ? h('ul.ranking', {}, overview.behind.map((group) => h('li', {}, h('a', { href: groupLink(group.name) }, group.name), bar(group.lag, furthest), h('b', {}, lag(group.lag))))) : h('p.muted', {}, 'Every group has read everything.')));
  }

  return {
    title: 'Overview',
    element,
    async refresh() {
      const answer = await get('/api/overview');
      if (answer.ready) draw(answer);
      else if (answer.error) throw new Error(answer.error);
      charts.refresh();
    },
    close: () => charts.close(),
  };
}
