#include "trestle/plan/page/plan_scripts.h"

namespace trestle::plan {

std::string_view plan_style() {
  return R"css(
:root {
  --part-0: #5b9bd5; --part-1: #d9776a; --part-2: #b9c2cb; --part-3: #7fb069;
  --line-0: #4f86c0; --line-1: #86b5e0; --line-2: #3f8f5c; --line-3: #e0a04f; --line-4: #cf6a1d;
  --line-5: #8657b8; --line-6: #c59be0; --line-7: #6b7f95; --line-8: #b9c2cb; --line-9: #b3372f;
  --front: #b84a12; --dot: #1f6fb5; --bound: #8fa2b4; --large: #b9a1a0;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --front: #ff9a5c; --dot: #6db3ef; --bound: #66788a; --large: #7d5f5e;
    --line-3: #d1923f; --line-8: #8b97a3; --part-2: #7d8995;
  }
}
.best { font-size: 1.05rem; }
.warn { color: var(--warn); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 0.6rem; margin: 0.75rem 0; }
.facts div { background: var(--panel); border-radius: 0.4rem; padding: 0.5rem 0.75rem; }
.facts dt { color: var(--quiet); font-size: 0.85rem; }
.facts dd { margin: 0; font-size: 1.05rem; font-weight: 600; }
.filters { display: flex; flex-wrap: wrap; gap: 0.5rem 0.75rem; align-items: end; margin: 0.75rem 0; }
.show-all { margin: 0.5rem 0; }
.filters label { display: flex; flex-direction: column; font-size: 0.8rem; color: var(--quiet); max-width: 100%; }
.filters select, .filters input { font-size: 0.9rem; max-width: 100%; }
#table th { position: sticky; top: 0; background: var(--paper); vertical-align: bottom; z-index: 1; }
#table th button { border-color: transparent; background: none; padding: 0.15rem 0.3rem; font-weight: 600; text-align: inherit; white-space: nowrap; }
#table th button:hover { border-color: var(--accent); }

#table th .tag { margin: 0 0.3rem; padding: 0; border: 0; font-size: 0.7rem; }
#table th[aria-sort=ascending] button::after { content: " \25B2"; font-size: 0.7em; }
#table th[aria-sort=descending] button::after { content: " \25BC"; font-size: 0.7em; }
#table tbody tr.plan { cursor: pointer; }
#table tbody tr.plan:hover td { background: var(--panel); }
#table tr.open td { border-bottom-color: transparent; }
#table { font-size: 0.85rem; }
#table td { padding: 0.25rem 0.4rem; }
#table tr.plan td { vertical-align: middle; }
#table th { padding: 0.2rem 0.1rem; }
#table td.words, #table tr.plan td:first-child { white-space: nowrap; }
#table td.name { display: none; }
#table .open-plan { min-width: 3.4em; white-space: nowrap; }
#table .open-plan::before { content: "\25B8  "; }
#table .open-plan[aria-expanded=true]::before { content: "\25BE  "; }
#table .tag.front { color: var(--front); border-color: var(--front); }
.detail > td { background: var(--panel); padding: 0.5rem 1rem 1rem; }
/* The window's width, where the table is wider. */
.detail > td > div { position: sticky; left: 1rem; max-width: calc(min(100vw, 100rem) - 2 * var(--side) - 2rem); }
.detail h3:first-child { margin-top: 0.25rem; }
.bar { display: flex; height: 1.1rem; border-radius: 0.2rem; overflow: hidden; background: var(--idle); }
.bar span { min-width: 0; }
.stage { display: grid; grid-template-columns: 6.5rem 1fr 6.5rem; gap: 0.1rem 0.75rem; align-items: center; margin: 0.35rem 0; font-size: 0.9rem; }
.stage .lines { grid-column: 2 / 4; color: var(--quiet); font-size: 0.8rem; }
.track { position: relative; }
.track .limit { position: absolute; top: -0.15rem; bottom: -0.15rem; width: 2px; background: var(--warn); }
.map svg { overflow: visible; }
.map .grid { stroke: var(--line); }
.map .limit { stroke: var(--warn); stroke-width: 1.5; stroke-dasharray: 5 4; }
.map .dot { fill: var(--dot); }
.map .bound { fill: none; stroke: var(--bound); }
.map .large { fill: none; stroke: var(--large); }
.map .front { fill: var(--front); stroke: var(--paper); stroke-width: 1.5; cursor: pointer; }
.map .front-line { fill: none; stroke: var(--front); stroke-width: 1.5; }
.map .front:focus-visible { outline: none; stroke: var(--focus); stroke-width: 4; }
.key-dot { width: 0.75em; height: 0.75em; border-radius: 50%; flex: none; border: 1.5px solid; }
.changes { margin: 0.35rem 0 0.35rem 1.2rem; padding: 0; }
@media screen and (max-width: 800px) {
  #table, #table tbody, #table tr, #table td { display: block; width: auto; }
  #table thead { display: none; }
  #table tr.plan { border: 1px solid var(--line); border-radius: 0.4rem; margin: 0.5rem 0 0; padding: 0.35rem 0.6rem; }
  #table tr.plan td { border: 0; padding: 0.05rem 0; display: flex; justify-content: space-between; gap: 1rem; align-items: center; text-align: right; white-space: normal; }
  #table tr.plan td::before { content: attr(data-heading); color: var(--quiet); text-align: left; }
  #table tr.plan td:first-child::before, #table tr.plan td.name::before { content: none; }
  #table tr.plan td.name { display: block; text-align: left; font-weight: 600; padding: 0.25rem 0; }
  #table tr.plan td.more { display: none; }
  #table .detail > td { padding: 0.5rem 0.75rem 0.75rem; }
  .detail > td > div { position: static; max-width: none; }
  .filters label { flex: 1 1 40%; }
  .stage { grid-template-columns: 1fr auto; }
  .stage .track { grid-column: 1 / 3; grid-row: 2; }
  .stage .lines { grid-column: 1 / 3; }
}
@media screen and (min-width: 801px) { .narrow-only { display: none !important; } }
)css";
}

}  // namespace trestle::plan
