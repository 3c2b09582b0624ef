#include "trestle/view/page/schedule_page.h"

namespace trestle::view {

std::string_view schedule_style() {
  return R"css(
.tools { display: flex; flex-wrap: wrap; gap: 0.5rem 0.9rem; align-items: center; margin: 0.5rem 0; }
.tools label { color: var(--quiet); font-size: 0.9rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; padding: 0; margin: 0.25rem 0; font-size: 0.85rem; }
.swatch { display: inline-block; width: 0.9em; height: 0.9em; border-radius: 0.2em; margin-right: 0.35em; vertical-align: -0.1em; }
.drawing { touch-action: pan-y; cursor: grab; }
.drawing canvas { display: block; width: 100%; }
.panel h2 { border: 0; padding: 0; margin: 0.9rem 0 0.1rem; font-size: 1rem; }
.panel p { margin: 0 0 0.2rem; font-size: 0.85rem; max-width: none; }
.facts { min-height: 3em; padding: 0.4rem 0.6rem; background: var(--panel); border-radius: 0.35rem; max-width: none;
  position: sticky; bottom: 0; }
)css";
}

std::string_view schedule_script() {
  return R"js(
const data = page.data, drawing = document.getElementById('drawing'), factsBox = document.getElementById('facts');
const longest = Math.max(...data.panels.map(panel => panel.end), 1e-12);
const left = 96, rowHeight = 22, memoryHeight = 16, rowGap = 8, axisHeight = 22;
const state = { begin: 0, end: longest, batch: null, skip: null, shown: 'all', panel: 0, rank: 0, cell: null };
// One scale for all panels that count the same.
const mostOf = unit => data.panels.filter(panel => panel.memory.unit === unit)
  .reduce((most, panel) => Math.max(most, ...panel.memory.peaks), 1);
const most = { bytes: mostOf('bytes'), live: mostOf('live') };
function peakText(panel, rank) {
  const peak = panel.memory.peaks[rank];
  if (peak === null) return `stage ${panel.stages[rank].join(', ')}`;
  return panel.memory.unit === 'live' ? `peak ${peak} live` : bytesText(peak);
}
const timeText = time => data.slots ? `${shortNumber(time)} slots` : secondsText(time);
const stagesOf = panel => panel.stages.flat();
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Which actions belong to what is followed.
const hasBatch = (cell, batch) => cell[2] === batch || cell[6] === batch;
function isFaded(panel, cell) {
  if (state.batch === null && state.skip === null) return false;
  if (state.batch !== null && !hasBatch(cell, state.batch)) return true;
  if (state.skip === null) return false;
  const ends = panel.skips[state.skip];
  return !ends || !(cell[1] === ends[0] || cell[1] === ends[1]) || cell[0] > 3;
}
function findCell(panel, stage, batch, kinds) {
  for (const [rank, row] of panel.rows.entries())
    for (const cell of row) {
      if (kinds.includes(cell[0]) && cell[1] === stage && cell[2] === batch) return { rank, cell };
      if (cell[0] === 5 && kinds.includes(0) && cell[1] === stage && cell[2] === batch) return { rank, cell };
      if (cell[0] === 5 && kinds.includes(1) && cell[5] === stage && cell[6] === batch) return { rank, cell };
    }
  return null;
}
const forwardOf = (panel, stage, batch) => findCell(panel, stage, batch, [0]);
const backwardOf = (panel, stage, batch) => findCell(panel, stage, batch, [1, 2]);

// Pairs of actions that an arrow joins.
function arrowsOf(panel) {
  const arrows = [], last = Math.max(...stagesOf(panel), 0);
  const join = (from, to, colour, dashed) => { if (from && to) arrows.push([from, to, colour, dashed]); };
  const addSkips = batch => panel.skips.forEach((ends, i) => {
    if (state.skip !== null && state.skip !== i) return;
    join(forwardOf(panel, ends[0], batch), forwardOf(panel, ends[1], batch), '#1f5c99', false);
    join(backwardOf(panel, ends[1], batch), backwardOf(panel, ends[0], batch), '#b4541a', true);
  });
  if (state.batch !== null) {
    if (state.skip === null)
      for (let stage = 0; stage < last; stage += 1) {
        join(forwardOf(panel, stage, state.batch), forwardOf(panel, stage + 1, state.batch), css('--quiet'), false);
        join(backwardOf(panel, stage + 1, state.batch), backwardOf(panel, stage, state.batch), css('--quiet'), true);
      }
    addSkips(state.batch);
  } else if (state.skip !== null) {
    for (let batch = 0; batch < panel.microBatches; batch += 1) addSkips(batch);
  }
  return arrows;
}

function rowTop(rank) { return axisHeight + rank * (rowHeight + memoryHeight + rowGap); }
function place(canvas, time) { return left + (time - state.begin) / (state.end - state.begin) * (canvas.width / canvas.scale - left - 8); }
function timeAt(canvas, x) { return state.begin + (x - left) / (canvas.width / canvas.scale - left - 8) * (state.end - state.begin); }

// Idle time.
function hatching(pen) {
  const tile = make('canvas', { width: 7, height: 7 }), line = tile.getContext('2d');
  line.strokeStyle = css('--line');
  line.beginPath(); line.moveTo(-1, 8); line.lineTo(8, -1); line.stroke();
  return pen.createPattern(tile, 'repeat');
}

function paint(canvas, panel, number) {
  const width = canvas.clientWidth, height = rowTop(panel.rows.length);
  const scale = window.devicePixelRatio || 1;
  canvas.scale = scale; canvas.width = width * scale; canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext('2d'), at = time => place(canvas, time);
  pen.scale(scale, scale);
  pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  pen.textBaseline = 'middle';
  const span = state.end - state.begin;
  pen.fillStyle = css('--quiet'); pen.strokeStyle = css('--line'); pen.textAlign = 'center';
  const step = roundTicks(span, Math.max(2, (width - left) / 110))[1] || span;
  for (let time = Math.ceil(state.begin / step) * step; time <= state.end + step * 1e-9; time += step) {
    pen.beginPath(); pen.moveTo(at(time), axisHeight - 4); pen.lineTo(at(time), height); pen.stroke();
    const label = data.slots ? shortNumber(time) : secondsText(time);
    pen.fillText(label, Math.min(at(time), width - pen.measureText(label).width / 2), 8);
  }
  panel.rows.forEach((row, rank) => {
    const top = rowTop(rank);
    pen.save();
    pen.beginPath(); pen.rect(left, top - 2, width - left, rowHeight + memoryHeight + 4); pen.clip();
    for (const fill of [css('--panel'), hatching(pen)]) {
      pen.fillStyle = fill;
      pen.fillRect(at(0), top, at(panel.end) - at(0), rowHeight);
    }
    for (const cell of row) {
      const x = at(cell[3]), end = at(cell[4]);
      if (end < left || x > width) continue;
      const index = panel.stages[rank].indexOf(cell[1]);
      // White lies under the paler colour of a later stage.
      pen.fillStyle = isFaded(panel, cell) ? css('--paper') : '#ffffff';
      pen.fillRect(x, top, Math.max(end - x, 0.5), rowHeight);
      pen.globalAlpha = isFaded(panel, cell) ? 0.15 : index > 0 ? 0.65 : 1;
      pen.fillStyle = data.kinds[cell[0]].colour;
      pen.fillRect(x, top, Math.max(end - x - (end - x > 3 ? 1 : 0), 0.5), rowHeight);
      pen.globalAlpha = isFaded(panel, cell) ? 0.3 : 1;
      if (end - x > 12 && cell[2] >= 0) {
        const label = cell.length > 5 ? `${cell[2]}+${cell[6]}` : String(cell[2]);
        pen.fillStyle = '#1d2733';
        if (pen.measureText(label).width + 8 <= end - x) pen.fillText(label, (x + end) / 2, top + rowHeight / 2);
      }
      pen.globalAlpha = 1;
      if (state.cell === cell) {
        pen.strokeStyle = css('--focus'); pen.lineWidth = 3;
        pen.strokeRect(x, top, Math.max(end - x - 1, 2), rowHeight); pen.lineWidth = 1;
      }
    }
    const samples = panel.memory.curves[rank];
    if (samples.length) {
      const base = top + rowHeight + memoryHeight, height = (memoryHeight - 2) / most[panel.memory.unit];
      const y = value => base - value * height;
      pen.beginPath(); pen.moveTo(at(samples[0][0]), base);
      samples.forEach(([time, value], i) => {
        if (i) pen.lineTo(at(time), y(samples[i - 1][1]));
        pen.lineTo(at(time), y(value));
      });
      pen.lineTo(at(panel.end), y(samples[samples.length - 1][1])); pen.lineTo(at(panel.end), base);
      pen.globalAlpha = 0.5; pen.fillStyle = css('--quiet'); pen.fill(); pen.globalAlpha = 1;
    }
    pen.restore();
    pen.textAlign = 'left'; pen.fillStyle = css('--ink');
    pen.fillText(panel.names[rank], 0, top + 8);
    pen.fillStyle = css('--quiet');
    pen.fillText(peakText(panel, rank), 0, top + 24);
    pen.textAlign = 'center';
  });
  pen.save();
  pen.beginPath(); pen.rect(left, 0, width - left, height); pen.clip();
  for (const [from, to, colour, dashed] of arrowsOf(panel)) {
    const x1 = at(from.cell[4]), y1 = rowTop(from.rank) + rowHeight / 2, x2 = at(to.cell[3]), y2 = rowTop(to.rank) + rowHeight / 2;
    pen.strokeStyle = pen.fillStyle = colour; pen.lineWidth = 1.5; pen.setLineDash(dashed ? [4, 3] : []);
    pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x2, y2); pen.stroke();
    pen.setLineDash([]);
    const angle = Math.atan2(y2 - y1, x2 - x1);
    pen.beginPath(); pen.moveTo(x2, y2);
    for (const side of [0.4, -0.4]) pen.lineTo(x2 - 8 * Math.cos(angle + side), y2 - 8 * Math.sin(angle + side));
    pen.fill(); pen.lineWidth = 1;
  }
  pen.restore();
}

const canvases = [];
function build() {
  canvases.length = 0;
  drawing.replaceChildren(...data.panels.map((panel, number) => {
    const canvas = make('canvas', { 'aria-hidden': 'true' });
    canvases.push([canvas, panel, number]);
    return make('section', { class: 'panel keep-whole', 'data-panel': number },
      make('h2', null, panel.title), make('p', { class: 'quiet' }, panel.summary), canvas);
  }));
}
function redraw() {
  Object.assign(drawing.dataset, { begin: state.begin, end: state.end, batch: state.batch ?? '', skip: state.skip ?? '' });
  for (const section of drawing.children)
    section.hidden = state.shown !== 'all' && section.dataset.panel !== state.shown;
  for (const [canvas, panel, number] of canvases)
    if (!canvas.parentElement.hidden) paint(canvas, panel, number);
}

function factsOf(panel, rank, cell) {
  const what = data.kinds[cell[0]].name;
  const batch = cell[2] < 0 ? '' : ` of micro-batch ${cell[2]}`;
  const pair = cell.length > 5 ? ` and the backward of micro-batch ${cell[6]} of stage ${cell[5]}` : '';
  return `${panel.title} · ${panel.names[rank]} · ${what}${batch} of stage ${cell[1]}${pair} · ` +
    `${timeText(cell[3])} to ${timeText(cell[4])}, ${timeText(cell[4] - cell[3])}`;
}
function choose(number, rank, cell) {
  Object.assign(state, { panel: number, rank, cell });
  factsBox.textContent = factsOf(data.panels[number], rank, cell);
}
function atPoint(event) {
  for (const [canvas, panel, number] of canvases) {
    const box = canvas.getBoundingClientRect();
    if (event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom) continue;
    const y = event.clientY - box.top, time = timeAt(canvas, event.clientX - box.left);
    const rank = panel.rows.findIndex((row, i) => y >= rowTop(i) && y < rowTop(i) + rowHeight);
    const cell = rank < 0 ? null : panel.rows[rank].find(one => one[3] <= time && time < one[4]);
    return { canvas, number, rank, cell, time };
  }
  return null;
}

function zoom(factor, around) {
  const length = Math.min(longest, Math.max((state.end - state.begin) * factor, longest * 1e-4));
  const middle = around === undefined ? (state.begin + state.end) / 2 : around;
  const share = (middle - state.begin) / (state.end - state.begin);
  move(middle - share * length, length);
}
function move(begin, length = state.end - state.begin) {
  state.begin = Math.max(0, Math.min(begin, longest - length));
  state.end = state.begin + length;
  redraw();
}
function keepInSight() {
  const [, , , begin, end] = state.cell, length = state.end - state.begin;
  if (begin < state.begin || end > state.end) move((begin + end) / 2 - length / 2);
}

const batchInput = make('input', { type: 'number', min: 0, size: 4, id: 'batch', placeholder: 'none',
  oninput: () => { state.batch = batchInput.value === '' ? null : Number(batchInput.value); redraw(); } });
const skips = (data.panels.find(panel => panel.skips.length) || { skips: [] }).skips;
const skipSelect = make('select', { id: 'skip', onchange: () => { state.skip = skipSelect.value === '' ? null : Number(skipSelect.value); redraw(); } },
  make('option', { value: '' }, 'none'), ...skips.map((ends, i) => make('option', { value: i }, `${ends[2] || 'skip'} (stage ${ends[0]} to ${ends[1]})`)));
const shown = make('select', { id: 'shown', onchange: () => { state.shown = shown.value; redraw(); } },
  make('option', { value: 'all' }, 'all, on one axis'), ...data.panels.map((panel, i) => make('option', { value: i }, panel.title)));
document.getElementById('tools').append(
  make('button', { id: 'in', type: 'button', 'aria-label': 'zoom in', onclick: () => zoom(0.5) }, '+'),
  make('button', { id: 'out', type: 'button', 'aria-label': 'zoom out', onclick: () => zoom(2) }, '−'),
  make('button', { id: 'whole', type: 'button', onclick: () => move(0, longest) }, 'whole step'),
  ...(data.panels.length > 1 ? [make('label', null, 'show ', shown)] : []),
  make('label', null, 'follow micro-batch ', batchInput),
  ...(skips.length ? [make('label', null, 'follow skip ', skipSelect)] : []));
const used = new Set(data.panels.flatMap(panel => panel.rows.flat().map(cell => cell[0])));
document.getElementById('legend').append(...data.kinds.filter((kind, i) => used.has(i)).map(kind =>
  make('li', null, make('span', { class: 'swatch', style: `background:${kind.colour}` }), kind.name)));

let dragged = null;
drawing.addEventListener('pointerdown', event => { const hit = atPoint(event); if (hit) dragged = { x: event.clientX, begin: state.begin, canvas: hit.canvas }; });
window.addEventListener('pointerup', () => { dragged = null; });
drawing.addEventListener('pointermove', event => {
  if (dragged && event.buttons) {
    const perPixel = (state.end - state.begin) / (dragged.canvas.clientWidth - left - 8);
    return move(dragged.begin - (event.clientX - dragged.x) * perPixel);
  }
  const hit = atPoint(event);
  if (hit && hit.cell && hit.cell !== state.cell) { choose(hit.number, hit.rank, hit.cell); redraw(); }
});
drawing.addEventListener('wheel', event => {
  const hit = atPoint(event);
  if (!hit || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, hit.time);
}, { passive: false });
function neighbour(key) {
  const panel = data.panels[state.panel];
  if (!state.cell) return [state.panel, 0, panel.rows[0][0]];
  const row = panel.rows[state.rank], here = row.indexOf(state.cell);
  if (key === 'ArrowRight') return [state.panel, state.rank, row[Math.min(here + 1, row.length - 1)]];
  if (key === 'ArrowLeft') return [state.panel, state.rank, row[Math.max(here - 1, 0)]];
  let [number, rank] = [state.panel, state.rank + (key === 'ArrowDown' ? 1 : -1)];
  const visible = data.panels.map((_, i) => i).filter(i => state.shown === 'all' || String(i) === state.shown);
  if (rank < 0 || rank >= panel.rows.length) {
    const next = visible.indexOf(number) + (rank < 0 ? -1 : 1);
    if (next < 0 || next >= visible.length) return [state.panel, state.rank, state.cell];
    number = visible[next];
    rank = rank < 0 ? data.panels[number].rows.length - 1 : 0;
  }
  const middle = (state.cell[3] + state.cell[4]) / 2;
  const nearest = data.panels[number].rows[rank].reduce((best, cell) =>
    best && Math.abs((best[3] + best[4]) / 2 - middle) <= Math.abs((cell[3] + cell[4]) / 2 - middle) ? best : cell, null);
  return nearest ? [number, rank, nearest] : [state.panel, state.rank, state.cell];
}
drawing.addEventListener('keydown', event => {
  const length = state.end - state.begin, key = event.key;
  if (key.startsWith('Arrow')) { choose(...neighbour(key)); keepInSight(); redraw(); }
  else if (key === '+' || key === '=') zoom(0.5, state.cell ? state.cell[3] : undefined);
  else if (key === '-') zoom(2, state.cell ? state.cell[3] : undefined);
  else if (key === '0') move(0, longest);
  else if (key === 'PageDown') move(state.begin + length / 2);
  else if (key === 'PageUp') move(state.begin - length / 2);
  else if ((key === 'f' || key === 'F') && state.cell && state.cell[2] >= 0) { state.batch = state.cell[2]; batchInput.value = state.batch; redraw(); }
  else if (key === 'Escape') { state.batch = state.skip = null; batchInput.value = ''; skipSelect.value = ''; redraw(); }
  else return;
  event.preventDefault();
});
window.addEventListener('resize', redraw);
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
build();
redraw();
)js";
}

}  // namespace trestle::view
