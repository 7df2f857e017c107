// Brokers, who leads what, who is in sync, and how far the others are behind.

import { get } from '../api.js';
import { fill, h } from '../dom.js';
import { ago, brief, bytes, count, date, plural } from '../format.js';
import { card, figure, grid, heading, lag, topicLink, waiting } from '../parts.js';
import { Table } from '../table.js';

export function cluster() {
  const body = h('div', {}, waiting());
  const element = h('div', {}, heading('Cluster'), body);
  const table = new Table([
    { title: 'Partition', width: 'minmax(0, 2fr)', sort: (row) => row.label, render: (row) => h('a', { href: topicLink(row.topic) }, row.label) },
    { title: 'Leader', width: 'minmax(0, .7fr)', end: true, sort: (row) => row.leader, render: (row) => (row.leader === null ? h('span.tag.bad', {}, 'nobody') : String(row.leader)) },
    { title: 'Epoch', width: 'minmax(0, .6fr)', end: true, wide: true, sort: (row) => row.epoch, render: (row) => count(row.epoch) },
    { title: 'In sync', width: 'minmax(0, 1fr)', sort: (row) => row.in_sync.length - row.replicas.length, render: (row) => row.replicas.map((replica) => h(`span.tag.${row.in_sync.includes(replica) ? 'good' : 'bad'}`, { title: row.in_sync.includes(replica) ? 'in sync' : 'not in sync' }, String(replica))) },
    { title: 'Behind', width: 'minmax(0, 1fr)', wide: true, render: (row) => Object.entries(row.lag).filter(([, value]) => value !== 0).map(([replica, value]) => [`${replica}: `, value === null ? h('span.muted', {}, 'not known') : lag(value), ' ']) },
  ], { label: 'Replicas', sorted: ['In sync', 1], empty: 'No topics yet.' });
  const brokers = h('div', {});
  const figures = h('div.figures', {});
  let asked = 0;

  function drawCluster(cluster) {
    if (!body.contains(table.element)) fill(body, figures, card('Brokers', brokers), card('Partitions', h('div.table-box', {}, table.element)));
    const rows = cluster.topics.flatMap((topic) => topic.partitions.map((partition) => ({ ...partition, topic: topic.name, label: `${topic.name}/${partition.partition}` })))
      .sort((a, b) => a.topic.startsWith('__') - b.topic.startsWith('__')); // Headwater's own come last
    fill(figures, figure('Brokers', count(cluster.brokers.filter((broker) => !broker.problem).length), `of ${cluster.brokers.length}`, cluster.brokers.some((broker) => broker.problem) ? 'warn' : ''),
      figure('Partitions', count(rows.length), plural(cluster.topics.length, 'topic')),
      figure('Without a leader', count(cluster.leaderless.length), '', cluster.leaderless.length ? 'bad' : ''),
      figure('Not all in sync', count(cluster.under_replicated.length), '', cluster.under_replicated.length ? 'warn' : ''));
    fill(brokers, grid('Brokers', [{ title: 'Broker' }, { title: 'Address' }, { title: 'Leads', end: true }, { title: 'Replicas', end: true }, { title: '' }],
      cluster.brokers.map((broker) => [String(broker.id), h('code', {}, broker.address ?? '–'), count(broker.leads), count(broker.replicas), broker.problem ? h('span.tag.bad', {}, broker.problem) : h('span.tag.good', {}, 'well')])));
    table.set(rows);
  }

  function drawBroker(broker) {
    const status = broker.status;
    if (!status) {
      fill(body, h('div.hint-box', {}, broker.problem));
      return;
    }
    fill(body, h('p.note', {}, 'A single broker, without a cluster.'), h('div.figures', {},
      figure('Broker', String(status.broker_id), status.state), figure('Up since', ago(status.started), date(status.started)), figure('Connections', count(status.connections)),
      figure('Produced', brief(status.produced_records), bytes(status.produced_bytes)), figure('Fetched', bytes(status.fetched_bytes)), figure('Memory', bytes(status.memory_bytes), `${bytes(status.in_flight_bytes)} in flight`)),
    card('About', grid('About', [{ title: 'What' }, { title: '' }], [['address', h('code', {}, broker.where)], ['directory', h('code', {}, status.directory)], ['version', status.version], ['topics', count(status.topics)], ['partitions', count(status.partitions)], ['unhealthy', status.unhealthy.length ? status.unhealthy.join(', ') : 'none']])));
  }

  return {
    title: 'Cluster',
    element,
    async refresh() {
      if (Date.now() - asked < 4000) return;
      asked = Date.now();
      const answer = await get('/api/cluster');
      element.dataset.drawn = 'yes';
      if (answer.kind === 'cluster') drawCluster(answer);
      else if (answer.kind === 'broker') drawBroker(answer);
      else fill(body, h('div.empty', {}, h('h2', {}, 'An embedded store'), h('p', {}, 'This store is a directory that programs open by themselves: ', h('code', {}, answer.where), '. There is no broker, and no cluster.'), h('p', {}, h('code', {}, 'hw broker DIRECTORY'), ' serves it to others; ', h('code', {}, 'hw cluster up'), ' starts a cluster on this machine.')));
    },
    close: () => table.close(),
  };
}
