// The last passes of the steward, and what a pass would do now.

import { get, post } from '../api.js';
import { dialog, form, toast, trying } from '../dialog.js';
import { fill, h, same } from '../dom.js';
import { bytes, count, date, plural } from '../format.js';
import { card, grid, heading, topicLink, waiting } from '../parts.js';

/** A pass in a sentence. */
function sentence(pass) {
  const parts = [
    pass.segments && `${plural(pass.segments, 'segment')} deleted, ${bytes(pass.bytes)}`,
    pass.partitions?.filter((partition) => partition.rolled).length && `${plural(pass.partitions.filter((partition) => partition.rolled).length, 'segment')} closed`,
    pass.partitions?.filter((partition) => partition.compacted).length && `${plural(pass.partitions.filter((partition) => partition.compacted).length, 'partition')} compacted`,
    pass.expired_groups?.length && `${plural(pass.expired_groups.length, 'group')} expired`,
    pass.swept_topics && `${plural(pass.swept_topics, 'deleted topic')} swept`,
    pass.finished_transactions && `${plural(pass.finished_transactions, 'transaction')} finished`,
    pass.dropped_stages && `${plural(pass.dropped_stages, 'abandoned transaction')} dropped`,
    pass.errors?.length && `${plural(pass.errors.length, 'error')}`,
  ].filter(Boolean);
  return parts.join(' · ') || 'nothing';
}

const rows = (list) => grid('Partitions', [{ title: 'Partition' }, { title: 'Deletes', end: true }, { title: 'Size', end: true }, { title: 'Also' }],
  list.map((partition) => [h('a', { href: topicLink(partition.topic) }, `${partition.topic}/${partition.partition}`), partition.segments ? plural(partition.segments, 'segment') : '–', partition.bytes ? bytes(partition.bytes) : '–', [
    partition.rolled && h('span.tag', {}, 'closes a segment'), partition.compacted && h('span.tag', {}, 'compacts'), partition.forced ? h('span.tag.warn', {}, `${partition.forced} unread`) : null,
    partition.protected_by?.length ? h('span.tag', { title: partition.protected_by.join(', ') }, `kept for ${partition.protected_by.join(', ')}`) : null, partition.error && h('span.tag.bad', {}, partition.error)]]), 'No partition needs anything.');

export function steward({ session }) {
  const state = h('div', {});
  const plan = h('div', {}, waiting('Looking at every partition…'));
  const past = h('div', {}, waiting());
  const options = h('div', {});
  const element = h('div', {}, heading('Steward', [], session.write && h('button.primary', { type: 'button', onclick: () => clean() }, 'Clean now')), state,
    card('What it would do now', plan), card('What was done', past), card('How this console would clean', options));

  /** A cluster has no one steward: nothing here can be asked of it. */
  function drawCluster() {
    fill(element, heading('Steward'), card('A cluster', h('p', {}, 'The brokers of a cluster clean its topics by themselves: each broker applies retention to the partitions that it leads, and fetches damaged records from another broker.'),
      h('p', {}, h('a', { href: '#/cluster' }, 'The cluster'), ' shows how they are.')));
  }

  async function look() {
    const answer = await get('/api/steward/plan');
    fill(plan, answer.skipped ? h('p', {}, answer.skipped) : [h('p', {}, `It would do: ${sentence(answer)}. ${bytes(answer.bytes_left)} in ${plural(answer.looked_at, 'partition')} stay.`), rows(answer.partitions),
      answer.more ? h('p.muted', {}, `and ${count(answer.more)} more`) : null, answer.clock ? h('p.muted', {}, answer.clock) : null, answer.errors.map((error) => h('p.problem', {}, error))]);
    return answer;
  }

  /** What is deleted does not come back: so what would be done at this moment is shown first. */
  async function clean() {
    const planned = await trying(look);
    if (!planned) return;
    form('Clean now', [h('p.plan', {}, planned.skipped ?? `This will be done: ${sentence(planned)}.`), planned.skipped ? null : rows(planned.partitions)], {
      action: 'Clean',
      danger: planned.segments > 0,
      wide: true,
      async act() {
        const report = await post('/api/steward/run');
        toast(report.skipped ?? `Done: ${sentence(report)}.`);
        await look();
      },
    });
  }

  let looked = 0;
  return {
    title: 'Steward',
    element,
    async refresh() {
      const status = await get('/api/steward');
      element.dataset.drawn = 'yes';
      if (status.clustered) {
        drawCluster();
        return;
      }
      same(state, [status.stewarded, status.problem], () => (status.stewarded
        ? h('p.all-well', {}, h('span.mark', { 'aria-hidden': 'true' }, '✓'), 'A steward runs for this store.')
        : h('div.hint-box', {}, status.stewarded === null ? 'You may not see whether a steward runs for this store.'
          : session.kind === 'broker' ? 'This broker keeps no history: its steward is off.' : ['No steward runs for this store, so retention and compaction do not happen. Serve it by a broker, or run ', h('code', {}, 'store.steward().start()'), ' in a program.'])));
      same(past, status.passes, () => grid('Passes', [{ title: 'When' }, { title: 'What' }, { title: '' }],
        status.passes.slice(0, 200).map((pass) => [h('span.muted', {}, date(pass.time)), sentence(pass), h('button.small', { type: 'button', onclick: () => dialog(date(pass.time), () => [rows(pass.partitions), pass.errors.map((error) => h('p.problem', {}, error))], { wide: true }) }, 'More')]), 'Its history has no passes.'));
      same(options, status.config, () => grid('Options', [{ title: 'Option' }, { title: 'Value' }], status.config.map((option) => [h('code', {}, option.name), h('code', {}, option.value)])));
      if (Date.now() - looked > 30000) {
        looked = Date.now();
        look().catch((error) => fill(plan, h('p.problem', {}, error.message)));
      }
    },
  };
}
