#include "trestle/plan/page/plan_scripts.h"

namespace trestle::plan {

std::string_view bytes_script() {
  return R"js(
const data = page.data;
const lineColour = line => `var(--line-${line % 10})`;
const bytesOf = stage => stage[2].reduce((sum, value, i) => i % 2 ? sum + value : sum, 0);

function share(part, whole, colour, words) {
  return make('span', { style: `width:${(100 * part / whole).toFixed(3)}%;background:${colour}`, title: words });
}
function colourKey(colour, words) {
  return make('li', null, make('span', { class: 'swatch', style: `background:${colour}` }), words);
}

// One bar for each stage, to the scale of the fullest one or of the limit.
function ledger(stages) {
  const most = Math.max(...stages.map(bytesOf), data.available || 0) || 1;
  const used = [...new Set(stages.flatMap(stage => stage[2].filter((value, i) => i % 2 === 0)))].sort((a, b) => a - b);
  const box = make('div', null, make('ul', { class: 'legend' },
    ...used.map(line => colourKey(lineColour(line), data.lines[line])),
    data.available === null ? null : colourKey('var(--warn)', `limit ${bytesText(data.available)}`)));
  for (const [first, last, lines] of stages) {
    const total = bytesOf([first, last, lines]), bar = make('div', { class: 'bar' }), words = [];
    for (let i = 0; i < lines.length; i += 2) {
      const name = `${data.lines[lines[i]]} ${bytesText(lines[i + 1])}`;
      bar.append(share(lines[i + 1], most, lineColour(lines[i]), name));
      words.push(name);
    }
    box.append(make('div', { class: 'stage keep-whole' },
      make('span', null, first === last ? `stage ${first}` : `stages ${first} to ${last}`),
      make('div', { class: 'track' }, bar, data.available === null ? null :
        make('span', { class: 'limit', style: `left:calc(${(100 * data.available / most).toFixed(3)}% - 2px)` })),
      make('span', { class: 'number' }, bytesText(total)),
      make('span', { class: 'lines' }, words.join(' · '))));
  }
  return box;
}

function parts(plan) {
  const names = ['computes', 'waits for messages', 'waits for other stages', 'updates'];
  const whole = plan.split.reduce((sum, part) => sum + part, 0) || 1;
  const words = i => `${names[i]} ${secondsText(plan.split[i])} (${(100 * plan.split[i] / whole).toFixed(0)} %)`;
  return make('div', { class: 'keep-whole' },
    make('div', { class: 'bar' }, ...plan.split.map((part, i) => share(part, whole, `var(--part-${i})`, words(i)))),
    make('ul', { class: 'legend' }, ...plan.split.map((part, i) => colourKey(`var(--part-${i})`, words(i)))));
}
)js";
}

}  // namespace trestle::plan
