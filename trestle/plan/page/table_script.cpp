#include "trestle/plan/page/plan_scripts.h"

namespace trestle::plan {

std::string_view table_script() {
  return R"js(
// A cell is a word, or [words, number].
const wordsOf = cell => Array.isArray(cell) ? cell[0] : cell;
const valueOf = cell => Array.isArray(cell) ? cell[1] : cell;
const compare = (a, b) => typeof a === 'number' ? a - b : a < b ? -1 : a > b ? 1 : 0;

const isSame = column => data.plans.length > 1 && data.columns[column].is === 'choice' &&
  data.plans.every(plan => wordsOf(plan.cells[column]) === wordsOf(data.plans[0].cells[column]));
const shown = data.columns.map((column, i) => i).filter(i => !isSame(i));
const choices = shown.filter(i => data.columns[i].is === 'choice');

// Column -1 is the number of the plan.
const order = { column: -1, down: false };
const filters = { words: '', choices: new Map() };
const rows = [], table = document.getElementById('table');
// A long table begins short, so that what follows it is near.
const mostRows = 25;
let showsAll = data.plans.length <= mostRows + 5;

function planDetail(plan, number) {
  const box = make('div', null, make('h3', null, plan.name));
  box.append(make('p', null, `One step takes ${plan.range} `, make('span', { class: 'tag' }, 'simulated'),
    ` with ${plan.micro_batches.toLocaleString('en')} micro-batch${plan.micro_batches === 1 ? '' : 'es'} of each data rank.`));
  box.append(make('p', null, plan.lost === undefined ? 'It is the best.' : `Compared with the best, ${plan.lost}.`,
    plan.front ? ' No other strategy beats it in both time and memory.' : ''));
  box.append(make('h3', null, `Time of stage ${plan.slowest}, the slowest `, make('span', { class: 'tag' }, 'simulated')), parts(plan));
  box.append(make('h3', null, plan.worst ? 'Bytes of the fullest stage ' : `Bytes of each stage; stage ${plan.fullest} is the fullest `, make('span', { class: 'tag' }, 'assumed')));
  if (plan.worst) box.append(make('p', { class: 'quiet' },
    'The page has the bytes of every stage for its first plans alone. trestle plan --keep with these degrees and --explain 1 prints them.'));
  box.append(ledger(plan.stages));
  box.append(make('h3', null, 'Timeline of a step ', make('span', { class: 'tag' }, 'simulated')));
  const timeline = make('div');
  box.append(timeline);
  if (plan.note) timeline.append(make('p', { class: 'quiet' }, plan.note));
  if (!plan.timeline) timeline.append(make('p', { class: 'quiet' },
    `${plan.no_timeline} trestle plan --keep with these degrees and --svg draws it.`));
  return { box, draw: () => { if (plan.timeline) drawTimeline(timeline, plan.timeline); } };
}

function setOpen(row, open) {
  row.button.setAttribute('aria-expanded', String(open));
  row.line.classList.toggle('open', open);
  if (open && !row.detail) {
    const detail = planDetail(row.plan, row.number);
    row.detail = make('tr', { class: 'detail', id: `plan-${row.number}` },
      make('td', { colspan: shown.length + 2 }, detail.box));
    row.line.after(row.detail);
    detail.draw();
  }
  if (row.detail) row.detail.hidden = !open;
}

function makeRow(plan, index) {
  const number = index + 1;
  const button = make('button', { type: 'button', class: 'open-plan', 'aria-expanded': 'false',
    'aria-controls': `plan-${number}`, 'aria-label': `Plan ${number}: ${plan.name}` }, String(number));
  const row = { plan, number, button, detail: null,
    text: (plan.name + ' ' + plan.cells.map(wordsOf).join(' ')).toLowerCase() };
  // A telephone shows the plan's name instead of its choices, and the parts of the step in the
  // opened plan.
  const kind = i => (data.columns[i].number ? 'number' : 'words') + (data.columns[i].brief ? '' : ' more');
  row.line = make('tr', { class: 'plan', 'data-plan': number },
    make('td', { 'data-heading': 'plan' }, button, ' ', plan.front ? make('span', { class: 'tag front' }, 'front') : null),
    make('td', { class: 'name' }, plan.name),
    ...shown.map(i => make('td', { 'data-heading': data.columns[i].heading, class: kind(i) }, wordsOf(plan.cells[i]))));
  row.line.addEventListener('click', event => {
    if (window.getSelection().isCollapsed || event.target === button)
      setOpen(row, button.getAttribute('aria-expanded') !== 'true');
  });
  return row;
}

function sortedBy(column, down) {
  const key = row => column < 0 ? row.number : valueOf(row.plan.cells[column]);
  return [...rows].sort((a, b) => (down ? -1 : 1) * compare(key(a), key(b)) || a.number - b.number);
}

function passes(row) {
  for (const [column, words] of filters.choices) if (wordsOf(row.plan.cells[column]) !== words) return false;
  return filters.words.split(/\s+/).every(word => row.text.includes(word));
}

function update() {
  const body = table.tBodies[0], sorted = sortedBy(order.column, order.down);
  const fragment = document.createDocumentFragment();
  let passing = 0;
  for (const row of sorted) {
    const passed = passes(row);
    passing += passed;
    const good = passed && (showsAll || passing <= mostRows);
    row.line.hidden = !good;
    fragment.append(row.line);
    if (row.detail) {
      row.detail.hidden = !good || row.button.getAttribute('aria-expanded') !== 'true';
      fragment.append(row.detail);
    }
  }
  body.append(fragment);
  for (const head of table.tHead.querySelectorAll('th')) {
    const mine = Number(head.dataset.column) === order.column;
    head.setAttribute('aria-sort', !mine ? 'none' : order.down ? 'descending' : 'ascending');
  }
  const all = document.getElementById('all');
  all.hidden = showsAll || passing <= mostRows;
  all.textContent = `Show all ${passing.toLocaleString('en')} plans`;
  document.getElementById('count').textContent = passing === 0 ? 'No plan matches: clear the filters.' :
    `${passing.toLocaleString('en')} of ${rows.length.toLocaleString('en')} plans`;
}

function sortBy(column) {
  order.down = order.column === column && !order.down;
  order.column = column;
  update();
}

function clearFilters() {
  filters.words = '';
  filters.choices.clear();
  for (const field of document.querySelectorAll('#filters [data-filter]')) field.value = '';
  update();
}

function showAll() {
  showsAll = true;
  update();
}

function filterField(name, field) {
  field.dataset.filter = '';
  return make('label', null, name, field);
}

function makeFilters() {
  const box = document.getElementById('filters');
  const words = make('input', { type: 'search', placeholder: 'for example zero-3', autocomplete: 'off' });
  words.addEventListener('input', () => { filters.words = words.value.trim().toLowerCase(); update(); });
  box.append(filterField('search', words));
  for (const column of choices) {
    const known = new Map(data.plans.map(plan => [wordsOf(plan.cells[column]), valueOf(plan.cells[column])]));
    const list = [...known].sort((a, b) => compare(a[1], b[1])).map(entry => entry[0]);
    const field = make('select', null, make('option', { value: '' }, 'any'),
      ...list.map(word => make('option', { value: word }, word)));
    field.addEventListener('change', () => {
      if (field.value === '') filters.choices.delete(column); else filters.choices.set(column, field.value);
      update();
    });
    box.append(filterField(data.columns[column].heading, field));
  }
  const sort = make('select', null, make('option', { value: '-1' }, 'plan'),
    ...shown.map(i => make('option', { value: i }, data.columns[i].heading)));
  sort.addEventListener('change', () => { order.column = Number(sort.value); order.down = false; update(); });
  box.append(make('label', { class: 'narrow-only' }, 'sort by', sort));
  const clear = make('button', { type: 'button' }, 'Clear filters');
  clear.addEventListener('click', clearFilters);
  box.append(clear);
}

function makeHead() {
  const cell = (column, heading, help, is, number) => make('th',
    { scope: 'col', 'aria-sort': 'none', 'data-column': column, class: number ? 'number' : '' },
    make('button', { type: 'button', title: help, onclick: () => sortBy(column) }, heading),
    is ? make('br') : null, is ? make('span', { class: 'tag' }, is) : null);
  // The name has a cell of its own on a telephone alone, which has no headings.
  return make('thead', null, make('tr', null, cell(-1, 'plan', 'The order of the search.', '', false),
    make('td', { class: 'name' }), ...shown.map(i => {
      const { heading, help, is, number } = data.columns[i];
      return cell(i, heading, help, is === 'choice' ? '' : is, number);
    })));
}

// Opens the plan with this name, and leads there.
function showPlan(name) {
  const row = rows.find(row => row.plan.name === name);
  if (!row) return;
  if (!passes(row)) clearFilters();
  if (row.line.hidden) showAll();
  setOpen(row, true);
  row.button.scrollIntoView({ block: 'start' });
  row.button.focus();
}

if (table) {
  const same = data.columns.map((column, i) => i).filter(isSame);
  document.getElementById('same').textContent = same.length === 0 ? '' : 'The same in all plans: ' +
    same.map(i => `${data.columns[i].heading} ${wordsOf(data.plans[0].cells[i])}`).join(' · ');
  rows.push(...data.plans.map(makeRow));
  table.append(make('caption', { class: 'skip' }, 'Plans. The headings sort.'), makeHead(), make('tbody'));
  document.getElementById('all').addEventListener('click', () => {
    const next = rows.findIndex(row => row.line.hidden && passes(row));
    showAll();
    if (next >= 0) rows[next].button.focus();
  });
  makeFilters();
  update();
  setOpen(rows[0], true);
}
)js";
}

}  // namespace trestle::plan
