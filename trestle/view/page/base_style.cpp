#include "trestle/view/page/page_frame.h"

namespace trestle::view {

std::string_view base_style() {
  return R"css(
:root {
  --paper: #ffffff; --panel: #f5f7f9; --ink: #1d2733; --quiet: #566370; --line: #d9dfe5;
  --accent: #1f6fb5; --warn: #a63a2b; --focus: #1f6fb5; --side: clamp(0.75rem, 3vw, 2.5rem);
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #12171d; --panel: #1b222a; --ink: #e8edf2; --quiet: #a3b0bc; --line: #35404b;
    --accent: #6db3ef; --warn: #f0907f; --focus: #9ccfff;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 1.25rem var(--side) 3rem; max-width: 100rem;
  background: var(--paper); color: var(--ink);
  font: 15px/1.5 Inter, "Helvetica Neue", Helvetica, "Segoe UI", Arial, "DejaVu Sans", sans-serif;
  overflow-wrap: anywhere;
}
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 0.25rem; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 0.5rem; padding-top: 0.75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.25rem 0 0.35rem; }
p { margin: 0.35rem 0; max-width: 75ch; }
.quiet { color: var(--quiet); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tag {
  display: inline-block; padding: 0 0.4em; border: 1px solid var(--line); border-radius: 0.6em;
  color: var(--quiet); font-size: 0.75rem; font-weight: 400; line-height: 1.5; white-space: nowrap;
}
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { padding: 0.35rem 0.55rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
button, select, input {
  font: inherit; color: var(--ink); background: var(--paper); border: 1px solid var(--line);
  border-radius: 0.35rem; padding: 0.25rem 0.5rem;
}
button { cursor: pointer; }
button:hover { border-color: var(--accent); }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 1px; border-radius: 0.25rem; }
svg { display: block; max-width: 100%; height: auto; }
svg text { fill: var(--quiet); font-size: 12px; }
pre { overflow-x: auto; }
.skip { position: absolute; left: -100rem; }
.skip:focus { position: static; }
@media print {
  @page { size: landscape; margin: 12mm; }
  body { padding: 0; font-size: 9pt; max-width: none; }
  table { font-size: 7.5pt; }
  th, td { padding: 0.15rem 0.25rem; }
  .screen-only { display: none !important; }
  tr, svg, .keep-whole { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
)css";
}

}  // namespace trestle::view
