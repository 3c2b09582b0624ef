#include "trestle/view/page/page_frame.h"

namespace trestle::view {

std::string_view base_script() {
  return R"js(
const page = { data: JSON.parse(document.getElementById('data').textContent) };
const holder = document.createElement('div');
holder.innerHTML = '<svg></svg>';
const spaceOfSvg = holder.firstChild.namespaceURI;

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {}))
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}
// make('p', {class: 'quiet'}, 'text', element): strings become text and never HTML.
function make(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}
function draw(tag, attributes, ...children) {
  return filled(document.createElementNS(spaceOfSvg, tag), attributes, children);
}

function shortNumber(value) {
  if (value === 0) return '0';
  if (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}
function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return (unit === 0 ? bytes.toFixed(0) : bytes.toFixed(1)) + ' ' + units[unit];
}
function secondsText(seconds) {
  if (seconds === 0) return '0';
  if (seconds < 1e-3) return shortNumber(seconds * 1e6) + ' us';
  if (seconds < 1) return shortNumber(seconds * 1e3) + ' ms';
  if (seconds < 120) return shortNumber(seconds) + ' s';
  if (seconds < 7200) return shortNumber(seconds / 60) + ' min';
  return shortNumber(seconds / 3600) + ' h';
}
// Round numbers of a linear axis from 0: 1, 2 or 5 times a power of ten.
function roundTicks(length, most) {
  if (!(length > 0)) return [0];
  const rough = length / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough * (1 - 1e-9));
  const ticks = [];
  for (let i = 0; i * step <= length * (1 + 1e-9); i += 1) ticks.push(i * step);
  return ticks;
}

// Pictures are drawn for the width of the window, and again when it changes.
const redraws = new Map();
function drawnForWidth(box, picture) {
  const again = () => {
    const width = box.clientWidth;
    if (width > 0) box.replaceChildren(picture(width));
  };
  redraws.set(box, again);
  again();
}
let widthBefore = window.innerWidth;
window.addEventListener('resize', () => {
  if (window.innerWidth === widthBefore) return;
  widthBefore = window.innerWidth;
  for (const [box, again] of redraws) if (box.isConnected) again(); else redraws.delete(box);
});
)js";
}

}  // namespace trestle::view
