#include "trestle/plan/page/plan_scripts.h"

namespace trestle::plan {

std::string_view missing_script() {
  return R"js(
function largeStrategy(large, heading) {
  return make('div', { class: 'keep-whole' }, make('h3', null, heading),
    make('p', null, `Stage ${large.stages[0][0]} needs ${bytesText(bytesOf(large.stages[0]))}, ` +
      `${bytesText(large.overshoot)} more than ${bytesText(data.available)}. A step would take ${large.step || 'at least ' + large.bound}.`),
    ledger(large.stages),
    large.changes.length === 0 ? null : make('p', null, 'The nearest strategies that fit:'),
    large.changes.length === 0 ? null : make('ul', { class: 'changes' }, ...large.changes.map(([name, step, slower, peak]) =>
      make('li', null, `${name}: ${step} per step, ${slower}; ${peak}`))));
}

function simpleTable(headings, lines) {
  return make('table', null,
    make('thead', null, make('tr', null, ...headings.map(heading => make('th', { scope: 'col' }, heading)))),
    make('tbody', null, ...lines.map(line => make('tr', null, ...line.map(cell => make('td', null, String(cell)))))));
}

const missing = document.getElementById('missing');
if (data.rules.length + data.too_large.length > 0 || data.least) {
  missing.append(make('h2', null, 'What is missing, and why'));
  if (data.least) missing.append(largeStrategy(data.least, `The least memory: ${data.least.name}`),
    make('p', null, data.least.devices));
  for (const large of data.too_large) missing.append(largeStrategy(large, `Does not fit: ${large.name}`));
  if (data.rules.length > 0) missing.append(make('h3', null, 'Not legal'), make('div', { class: 'scroll' },
    simpleTable(['rule', 'the first that breaks it', 'choices'],
                data.rules.map(([rule, why, count]) => [rule, why, count.toLocaleString('en')]))));
}
document.getElementById('figures').append(simpleTable(['figure', 'value', 'is', 'from'], data.figures));
)js";
}

}  // namespace trestle::plan
