#include "trestle/plan/page/plan_scripts.h"

namespace trestle::plan {

std::string_view map_script() {
  return R"js(
// 1, 2 and 5 times powers of `base`, between two numbers.
function logTicks(low, high, units) {
  const ticks = [];
  for (const unit of units)
    for (const factor of [1, 2, 5, 10, 20, 50, 100, 200, 500])
      if (unit * factor >= low && unit * factor <= high) ticks.push(unit * factor);
  return [...new Set(ticks)].sort((a, b) => a - b);
}
// Those that have room: at least `least` apart on the axis.
function roomy(ticks, place, least) {
  const kept = [];
  for (const tick of ticks)
    if (kept.length === 0 || Math.abs(place(tick) - place(kept[kept.length - 1])) >= least) kept.push(tick);
  return kept;
}

class LogAxis {
  constructor(values, from, to) {
    const low = Math.log(Math.min(...values)), high = Math.log(Math.max(...values));
    const room = Math.max((high - low) * 0.05, 0.05);
    Object.assign(this, { low: low - room, high: high + room, from, to });
  }
  at(value) { return this.from + (Math.log(value) - this.low) / (this.high - this.low) * (this.to - this.from); }
  ticks(units, least) {
    return roomy(logTicks(Math.exp(this.low), Math.exp(this.high), units), value => this.at(value), least);
  }
}

const nameOfPoint = point => point[3].map(word => data.map.words[word]).join(' · ');
const tickBytes = bytes => bytesText(bytes).replace('.0 ', ' ');

function frontPoints() {
  const simulated = data.map.points.filter(point => point[2] === 0).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const names = new Set(data.plans.filter(plan => plan.front).map(plan => plan.name));
  return simulated.filter(point => names.has(nameOfPoint(point)));
}

function mapPicture(width) {
  const height = Math.min(Math.max(width * 0.5, 260), 460), left = 62, right = 12, top = 26, bottom = 42;
  const points = data.map.points;
  // Strategies far beyond the limit would press all that fits into a corner.
  const near = points.filter(point => point[2] < 2 || data.available === null || point[0] < 8 * data.available);
  const x = new LogAxis([...near.map(point => point[0]), data.available || near[0][0]], left, width - right);
  const y = new LogAxis(near.map(point => point[1]), height - bottom, top);
  const picture = draw('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'group',
    'aria-label': 'Time of a step against memory of the fullest device, both on logarithmic scales' });
  for (const bytes of x.ticks([1024, 2 ** 20, 2 ** 30, 2 ** 40], 62)) picture.append(
    draw('path', { class: 'grid', d: `M${x.at(bytes)} ${top}V${height - bottom}` }),
    draw('text', { x: x.at(bytes), y: height - bottom + 16, 'text-anchor': 'middle' }, tickBytes(bytes)));
  for (const seconds of y.ticks([1e-6, 1e-3, 1, 1e3], 26)) picture.append(
    draw('path', { class: 'grid', d: `M${left} ${y.at(seconds)}H${width - right}` }),
    draw('text', { x: left - 6, y: y.at(seconds) + 4, 'text-anchor': 'end' }, secondsText(seconds)));
  picture.append(draw('text', { x: width - right, y: height - 6, 'text-anchor': 'end' }, 'memory of the fullest device'));
  picture.append(draw('text', { x: 0, y: top - 14 }, 'time of a step'));
  const kinds = ['dot', 'bound', 'large'];
  const kindWords = ['', 'at least ', 'does not fit; at least '];
  for (const point of [...near].sort((a, b) => b[2] - a[2])) picture.append(
    draw('circle', { class: kinds[point[2]], cx: x.at(point[0]).toFixed(1), cy: y.at(point[1]).toFixed(1), r: 2.5 },
      draw('title', null, `${nameOfPoint(point)}: ${kindWords[point[2]]}${secondsText(point[1])}, ${bytesText(point[0])}`)));
  if (data.available !== null) picture.append(
    draw('path', { class: 'limit', d: `M${x.at(data.available)} ${top}V${height - bottom}` }));
  const front = frontPoints();
  picture.append(draw('path', { class: 'front-line', d: front.map((point, i) =>
    i === 0 ? `M${x.at(point[0])} ${y.at(point[1])}` : `H${x.at(point[0])}V${y.at(point[1])}`).join('') }));
  for (const point of front) {
    const name = nameOfPoint(point), words = `${name}: ${secondsText(point[1])}, ${bytesText(point[0])}`;
    const open = event => { event.preventDefault(); showPlan(name); };
    picture.append(draw('circle', { class: 'front', cx: x.at(point[0]), cy: y.at(point[1]), r: 6, tabindex: 0, role: 'button',
      'aria-label': `Open the plan ${words}`, onclick: open,
      onkeydown: event => { if (event.key === 'Enter' || event.key === ' ') open(event); } }, draw('title', null, words)));
  }
  return picture;
}

function makeMap(box) {
  const count = is => data.map.points.filter(point => point[2] === is).length;
  const key = (colour, fill, words) => make('li', null, make('span', { class: 'key-dot',
    style: `border-color:${colour};background:${fill ? colour : 'none'}` }), words);
  const picture = make('div');
  box.append(make('ul', { class: 'legend' },
    key('var(--front)', true, `front (${frontPoints().length})`), key('var(--dot)', true, `simulated (${count(0)})`),
    count(1) ? key('var(--bound)', false, 'not simulated: it takes at least this time') : null,
    count(2) ? key('var(--large)', false, 'does not fit') : null,
    data.available === null ? null : colourKey('var(--warn)', `limit ${bytesText(data.available)}`)), picture);
  drawnForWidth(picture, mapPicture);
}

if (document.getElementById('map')) makeMap(document.getElementById('map'));
)js";
}

}  // namespace trestle::plan
