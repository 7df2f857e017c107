// The last passes of the steward, and what a pass would do now.

import { get, post } from '../api.js';
import { dialog, form, toast, trying } from '../dialog.js';
import { fill, h, same } from '../dom.js';
import { bytes, count, date, plural } from '../format.js';
import { card, grid, heading, topicLink, waiting } from '../parts.js';

/** A pass in a sentence. */
function sentence(one) {
  const parts = [
    one.segments && `${plural(one.segments, 'segment')} deleted, ${bytes(one.bytes)}`,
    one.partitions?.filter((each) => each.rolled).length && `${plural(one.partitions.filter((each) => each.rolled).length, 'segment')} closed`,
    one.partitions?.filter((each) => each.compacted).length && `${plural(one.partitions.filter((each) => each.compacted).length, 'partition')} compacted`,
    one.expired_groups?.length && `${plural(one.expired_groups.length, 'group')} expired`,
    one.swept_topics && `${plural(one.swept_topics, 'deleted topic')} swept`,
    one.finished_transactions && `${plural(one.finished_transactions, 'transaction')} finished`,
    one.dropped_stages && `${plural(one.dropped_stages, 'abandoned transaction')} dropped`,
    one.errors?.length && `${plural(one.errors.length, 'error')}`,
  ].filter(Boolean);
  return parts.join(' · ') || 'nothing';
}

const rows = (list) => grid('Partitions', [{ title: 'Partition' }, { title: 'Deletes', end: true }, { title: 'Size', end: true }, { title: 'Also' }],
  list.map((one) => [h('a', { href: topicLink(one.topic) }, `${one.topic}/${one.partition}`), one.segments ? plural(one.segments, 'segment') : '–', one.bytes ? bytes(one.bytes) : '–', [
    one.rolled && h('span.tag', {}, 'closes a segment'), one.compacted && h('span.tag', {}, 'compacts'), one.forced ? h('span.tag.warn', {}, `${one.forced} unread`) : null,
    one.protected_by?.length ? h('span.tag', { title: one.protected_by.join(', ') }, `kept for ${one.protected_by.join(', ')}`) : null, one.error && h('span.tag.bad', {}, one.error)]]), 'No partition needs anything.');

export function steward({ session }) {
  const state = h('div', {});
  const plan = h('div', {}, waiting('Looking at every partition…'));
  const past = h('div', {}, waiting());
  const options = h('div', {});
  const element = h('div', {}, heading('Steward', [], session.write && h('button.primary', { type: 'button', onclick: () => clean() }, 'Clean now')), state,
    card('What it would do now', plan), card('What was done', past), card('How this console would clean', options));

  /** A cluster has no one steward: nothing here can be asked of it. */
  function drawCluster() {
    fill(element, heading('Steward'), card('A cluster', h('p', {}, 'The brokers of a cluster look after its topics by themselves: each deletes what the partitions that it leads no longer want, and what is damaged at one broker is fetched from another.'),
      h('p', {}, h('a', { href: '#/cluster' }, 'The cluster'), ' shows how they are.')));
  }

  async function look() {
    const found = await get('/api/steward/plan');
    fill(plan, found.skipped ? h('p', {}, found.skipped) : [h('p', {}, `It would do: ${sentence(found)}. ${bytes(found.bytes_left)} in ${plural(found.looked_at, 'partition')} stay.`), rows(found.partitions),
      found.more ? h('p.muted', {}, `and ${count(found.more)} more`) : null, found.clock ? h('p.muted', {}, found.clock) : null, found.errors.map((one) => h('p.problem', {}, one))]);
    return found;
  }

  /** What is deleted does not come back: so what would be done at this moment is shown first. */
  async function clean() {
    const found = await trying(look);
    if (!found) return;
    form('Clean now', [h('p.plan', {}, found.skipped ?? `This will be done: ${sentence(found)}.`), found.skipped ? null : rows(found.partitions)], {
      action: 'Clean',
      danger: found.segments > 0,
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
      const found = await get('/api/steward');
      element.dataset.drawn = 'yes';
      if (found.clustered) {
        drawCluster();
        return;
      }
      same(state, [found.stewarded, found.problem], () => (found.stewarded
        ? h('p.all-well', {}, h('span.mark', { 'aria-hidden': 'true' }, '✓'), 'Someone stewards this store.')
        : h('div.hint-box', {}, found.stewarded === null ? 'Whether someone stewards this store is not for you to know.'
          : session.kind === 'broker' ? 'No history is noted here: the steward of this broker is off.' : ['Nobody stewards this store: what its topics no longer want stays. Serve it by a broker, or run ', h('code', {}, 'store.steward().start()'), ' in a program.'])));
      same(past, found.passes, () => grid('Passes', [{ title: 'When' }, { title: 'What' }, { title: '' }],
        found.passes.slice(0, 200).map((one) => [h('span.muted', {}, date(one.time)), sentence(one), h('button.small', { type: 'button', onclick: () => dialog(date(one.time), () => [rows(one.partitions), one.errors.map((error) => h('p.problem', {}, error))], { wide: true }) }, 'More')]), 'Nothing that its history knows of.'));
      same(options, found.config, () => grid('Options', [{ title: 'Option' }, { title: 'Value' }], found.config.map((one) => [h('code', {}, one.name), h('code', {}, one.value)])));
      if (Date.now() - looked > 30000) {
        looked = Date.now();
        look().catch((error) => fill(plan, h('p.problem', {}, error.message)));
      }
    },
  };
}
