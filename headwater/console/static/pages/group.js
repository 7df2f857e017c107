// One group: its lag over time, its members, its positions, and setting them anew.

import { get, part, post } from '../api.js';
import { History } from '../chart.js';
import { dialog, field, toast } from '../dialog.js';
import { fill, h, same } from '../dom.js';
import { ago, brief, count, date, plural } from '../format.js';
import { bar, card, figure, grid, heading, lag, topicLink, waiting } from '../parts.js';

export function group({ session }, name) {
  const path = `/api/groups/${part(name)}`;
  const charts = new History({ of: 'group', name }, [{ title: 'Lag', format: 'count', pick: (series) => series.startsWith('lag') }]);
  const figures = h('div.figures', {});
  const members = h('div', {});
  const partitions = h('div', {});
  const body = h('div', {}, waiting());
  const element = h('div', {}, heading(name, [['Groups', '#/groups']], h('button', { type: 'button', onclick: () => reset() }, session.write ? 'Reset…' : 'What would a reset do?')), body);
  let last = null;

  function draw(group) {
    last = group;
    element.dataset.drawn = 'yes';
    if (!body.contains(figures)) fill(body, figures, charts.element, card('Positions', partitions), card('Members', members));
    const newest = Math.max(...group.partitions.map((partition) => partition.committed ?? 0), 0);
    const worst = Math.max(...group.partitions.map((partition) => partition.lag ?? 0), 0);
    fill(figures,
      figure('Lag', brief(group.lag), group.lag ? 'not acknowledged' : 'everything is read', group.lag > 10000 ? 'warn' : ''),
      figure('Members', count(group.members.length), group.members.length ? '' : 'nobody reads', group.members.length || !group.lag ? '' : 'warn'),
      figure('Partitions', count(group.partitions.length), plural(new Set(group.partitions.map((partition) => partition.topic)).size, 'topic')),
      figure('Last commit', ago(newest), date(newest)),
      figure('Generation', count(group.generation)));
    fill(partitions, grid('Positions', [{ title: 'Topic' }, { title: 'Partition', end: true }, { title: 'Position', end: true }, { title: 'End', end: true, wide: true }, { title: 'Lag', end: true }, { title: '', wide: true }, { title: 'Committed', end: true, wide: true }, { title: 'Commits', end: true, wide: true }, { title: 'Owner', wide: true }],
      group.partitions.slice(0, 1000).map((partition) => [
        partition.deleted ? h('span.muted', {}, partition.topic) : h('a', { href: topicLink(partition.topic) }, partition.topic), String(partition.partition), count(partition.offset), count(partition.end), lag(partition.lag), bar(partition.lag ?? 0, worst),
        h('span.muted', { title: date(partition.committed) }, ago(partition.committed)), partition.commits === undefined ? '' : count(partition.commits), partition.owner ? h('code', { title: partition.owner }, partition.owner.slice(0, 8)) : h('span.muted', {}, 'nobody')]), 'The group has no positions yet.'));
    same(members, group.members, () => grid('Members', [{ title: 'Member' }, { title: 'Client', wide: true }, { title: 'Wants', wide: true }, { title: 'Has' }, { title: 'Waits for', wide: true }, { title: 'Joined', end: true }],
      group.members.map((member) => [h('code', { title: member.id }, member.id.slice(0, 8)), member.client || '–', member.topics.join(', '), member.partitions.length > 8 ? plural(member.partitions.length, 'partition') : member.partitions.join(', ') || '–', member.waits_for.join(', ') || '–', h('span.muted', { title: date(member.joined) }, ago(member.joined))]), 'The group has no members.'));
  }

  /** First what it would do, then the deed: exactly what was shown. */
  function reset() {
    const topics = [...new Set(last.partitions.filter((partition) => !partition.deleted).map((partition) => partition.topic))];
    const topic = h('select', { 'aria-label': 'Topic' }, topics.map((option) => h('option', {}, option)));
    const to = h('select', { 'aria-label': 'To', onchange: () => { position.hidden = !['offset', 'time'].includes(to.value); position.placeholder = to.value === 'time' ? '-1h or 2026-01-31T12:00' : 'offset, -100 from the end'; } },
      [['earliest', 'the beginning'], ['latest', 'the end'], ['offset', 'an offset'], ['time', 'a time']].map(([value, text]) => h('option', { value }, text)));
    const position = h('input', { hidden: true, 'aria-label': 'Offset or time' });
    const only = h('input', { placeholder: 'all', 'aria-label': 'Partitions' });
    const shown = h('div.plan', {});
    const problem = h('p.problem', { role: 'alert', hidden: true });
    const tell = (error) => { problem.textContent = error.message; problem.hidden = false; };

    const element_ = dialog(`Reset ${name}`, (close) => {
      const apply = (plan) => h('button.danger', {
        type: 'button',
        onclick: async () => {
          try {
            await post(`${path}/reset`, { topic: plan.topic, uuid: plan.uuid, positions: Object.fromEntries(plan.rows.map((row) => [row.partition, row.after])) });
            toast(`${plural(plan.rows.length, 'position')} of ${name} were set.`);
            close();
            draw(await get(path));
          } catch (error) {
            tell(error);
          }
        },
      }, 'Set these positions');
      const look = async (event) => {
        event.preventDefault();
        problem.hidden = true;
        try {
          const numbers = only.value.split(',').map((number) => number.trim()).filter(Boolean).map(Number);
          const plan = await post(`${path}/plan`, { topic: topic.value, to: ['offset', 'time'].includes(to.value) ? position.value : to.value, partitions: numbers });
          const again = plan.rows.reduce((sum, row) => sum + Math.max(-(row.change ?? 0), 0), 0);
          const skipped = plan.rows.reduce((sum, row) => sum + Math.max(row.change ?? 0, 0), 0);
          fill(shown, grid('The difference', [{ title: 'Partition' }, { title: 'From', end: true }, { title: 'To', end: true }, { title: 'Change', end: true }, { title: 'Lag then', end: true }],
            plan.rows.map((row) => [String(row.partition), count(row.before), count(row.after), h(`span${row.change < 0 ? '.back' : row.change > 0 ? '.ahead' : '.muted'}`, {}, row.change > 0 ? `+${count(row.change)}` : count(row.change)), count(row.lag)])),
          h('p', {}, again ? `${plural(again, 'record')} will be handled again. ` : '', skipped ? `${plural(skipped, 'record')} will be skipped. ` : '', !again && !skipped ? 'Nothing would change.' : ''),
          last.members.length ? h('p.note', {}, `${plural(last.members.length, 'member')} will continue from there. Work that they have not committed by then is done again or skipped.`) : null,
          session.write ? h('div.buttons', {}, apply(plan)) : h('p.note', {}, 'This console is read-only: start it with --write to do it.'));
        } catch (error) {
          tell(error);
        }
      };
      return h('div', {}, h('form.form', { onsubmit: look }, h('div.pair', {}, field('Topic', topic), field('Partitions', only, 'Numbers separated by commas; empty means all')), field('To', h('div.row', {}, to, position)), h('div.buttons', {}, h('button.primary', { type: 'submit' }, 'Show the difference'))), problem, shown);
    }, { wide: true });
    if (!topics.length) fill(element_.querySelector('.form'), h('p', {}, 'The group has no positions to set.'));
  }

  return {
    title: name,
    element,
    async refresh() {
      draw(await get(path));
      charts.refresh();
    },
    close: () => charts.close(),
  };
}
