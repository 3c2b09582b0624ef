#include "trestle/view/page/timeline_drawing.h"

namespace trestle::view {

// The colours of palette.h. Dark ink stands on all of them, in the dark too.
std::string_view timeline_style() {
  return R"css(
:root { --idle: #f0f2f4; }
@media screen and (prefers-color-scheme: dark) { :root { --idle: #232c35; } }
.timeline { margin: 0.5rem 0; }
.timeline .idle { fill: var(--idle); }
.timeline .cell { stroke: var(--paper); stroke-width: 0.6; }
.timeline text.label { fill: #1d2733; font-size: 10.5px; text-anchor: middle; }
.timeline .break { stroke: var(--quiet); stroke-dasharray: 3 3; }
.kind-F { fill: #9ec9ec; background: #9ec9ec; }
.kind-B { fill: #f4bd86; background: #f4bd86; }
.kind-I { fill: #f0d77b; background: #f0d77b; }
.kind-W { fill: #bfdba0; background: #bfdba0; }
.kind-R { fill: #cdc3ec; background: #cdc3ec; }
.kind-O { fill: #e3cfc0; background: #e3cfc0; }
.kind-U, .kind-S, .kind-N { fill: #ccd4dc; background: #ccd4dc; }
.kind-G { fill: #e59a92; background: #e59a92; }
.kind-P { fill: #a9b8c7; background: #a9b8c7; }
.legend { display: flex; flex-wrap: wrap; gap: 0.1rem 1rem; padding: 0; margin: 0.35rem 0; list-style: none; font-size: 0.85rem; }
.legend li { display: flex; align-items: center; gap: 0.4em; }
.swatch { width: 0.9em; height: 0.9em; border-radius: 0.15em; flex: none; }
)css";
}

std::string_view timeline_script() {
  return R"js(
function swatch(name, words) {
  return make('li', null, make('span', { class: 'swatch ' + name }), words);
}

// One window of the step, `x` and `width` in pixels.
function drawWindow(data, window, x, width, rowHeight) {
  const scale = width / Math.max(window.to - window.from, 1), cells = draw('g');
  window.rows.forEach((row, rank) => {
    const y = rank * rowHeight, height = rowHeight - 3;
    cells.append(draw('rect', { class: 'idle', x, y, width, height }));
    for (let i = 0; i < row.length; i += 4) {
      const [kind, microBatch, begin, duration] = row.slice(i, i + 4);
      const left = x + (begin - window.from) * scale;
      const wide = Math.max(Math.min(duration * scale, x + width - left), 0.4);
      const [letter, name] = data.kinds[kind];
      cells.append(draw('rect', { class: 'cell kind-' + letter, x: left.toFixed(2), y,
                                  width: wide.toFixed(2), height },
        draw('title', null, data.names[rank] + ': ' + name +
          (microBatch >= 0 ? ' of micro-batch ' + microBatch : '') + ', ' +
          secondsText(duration / 1e5 * data.seconds))));
      const label = microBatch >= 0 ? String(microBatch) : letter;
      if (wide > 7 * label.length + 3)
        cells.append(draw('text', { class: 'label', x: (left + wide / 2).toFixed(2), y: y + height / 2 + 4 }, label));
    }
  });
  return cells;
}

function timelinePicture(data, width) {
  const names = Math.min(8 + 7 * Math.max(...data.names.map(name => name.length)), 90);
  const gap = 26, rowHeight = data.names.length > 24 ? 15 : 22;
  const rows = data.names.length * rowHeight, height = rows + 24;
  const each = (width - names - 30 - gap * (data.windows.length - 1)) / data.windows.length;
  const picture = draw('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img',
    'aria-label': `Timeline of a step of ${secondsText(data.seconds)} on ${data.names.length} ranks` });
  data.names.forEach((name, rank) =>
    picture.append(draw('text', { x: 0, y: rank * rowHeight + rowHeight / 2 + 3 }, name)));
  data.windows.forEach((window, i) => {
    const x = names + i * (each + gap), from = window.from / 1e5 * data.seconds;
    const length = (window.to - window.from) / 1e5 * data.seconds;
    picture.append(drawWindow(data, window, x, each, rowHeight));
    if (i > 0) {
      const middle = x - gap / 2;
      picture.append(draw('path', { class: 'break', d: `M${middle} 0V${rows}` }));
    }
    const ticks = i === 0 ? roundTicks(length, Math.max(each / 90, 2)).map(at => [at, at])
                          : [[0, from], [length, from + length]];
    ticks.forEach(([at, value], k) => picture.append(draw('text',
      { x: x + at / length * each, y: rows + 16, 'text-anchor': i > 0 && k > 0 ? 'end' : k > 0 ? 'middle' : 'start' },
      secondsText(value))));
  });
  return picture;
}

function drawTimeline(box, data) {
  box.classList.add('timeline');
  const picture = make('div');
  box.append(make('ul', { class: 'legend' }, ...data.kinds.map(([letter, name]) => swatch('kind-' + letter, name))));
  if (data.hidden > 0)
    box.append(make('p', { class: 'quiet' },
      `The begin and the end of the step: ${data.hidden.toLocaleString('en')} cells between them are not drawn.`));
  box.append(picture);
  drawnForWidth(picture, width => timelinePicture(data, width));
}
)js";
}

}  // namespace trestle::view
