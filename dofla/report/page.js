// Shows the value of the mark under the pointer or with the focus. The page reads well without it.
'use strict';
(() => {
  const tip = document.getElementById('tip');
  let active = null;  // the mark whose value is shown

  const clear = () => {
    tip.hidden = true;
    if (!active) return;
    active.classList.remove('active');
    const lines = active.closest('.lines');
    if (lines) {
      lines.classList.remove('chosen');
      lines.querySelector('.pointer').setAttribute('visibility', 'hidden');
    }
    active = null;
  };

  // Places the tip above the box, given in the window's coordinates, and inside the page.
  const show = (mark, text, box) => {
    if (active !== mark) clear();
    active = mark;
    mark.classList.add('active');
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = tip.style.top = '0';
    const widest = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const left = (box.left + box.right - tip.offsetWidth) / 2;
    const above = box.top - tip.offsetHeight - 8;
    tip.style.left = `${Math.max(8, Math.min(left, widest)) + scrollX}px`;
    tip.style.top = `${(above < 0 ? box.bottom + 8 : above) + scrollY}px`;
  };

  // The points of a curve: where they are drawn, and the values behind them.
  const points = new WeakMap();
  const pointsOf = (series) => {
    if (!points.has(series)) {
      const at = (series.getAttribute('d') || '').match(/[\d.-]+ [\d.-]+/g) || [];
      const x = series.dataset.x.split('|'), y = series.dataset.y.split('|');
      points.set(series, at.map((pair, i) => {
        const [px, py] = pair.split(' ').map(Number);
        return {px, py, x: x[i], y: y[i]};
      }));
    }
    return points.get(series);
  };

  const showPoint = (series, index) => {
    const point = pointsOf(series)[index];
    const label = series.getAttribute('aria-label');
    if (!point) {
      show(series, `${label}: nothing to draw`, series.ownerSVGElement.getBoundingClientRect());
      return;
    }
    const lines = series.closest('.lines'), pointer = lines.querySelector('.pointer');
    series.dataset.col = index;
    pointer.setAttribute('cx', point.px);
    pointer.setAttribute('cy', point.py);
    const {xName, yName} = lines.dataset;
    show(series, `${label}: ${xName} ${point.x}, ${yName} ${point.y}`,
         pointer.getBoundingClientRect());
    lines.classList.add('chosen');
    pointer.setAttribute('visibility', 'visible');
  };

  const showMark = (mark) => {
    if (mark.matches('.series')) {
      showPoint(mark, Number(mark.dataset.col));
    } else {
      const shape = mark.querySelector('.fill') || mark;
      show(mark, mark.getAttribute('aria-label'), shape.getBoundingClientRect());
    }
  };

  // Near a curve its nearest point answers; a curve alone would be too thin to hit.
  const reach = 24;
  const showNearest = (svg, event) => {
    const at = new DOMPoint(event.clientX, event.clientY)
                   .matrixTransform(svg.getScreenCTM().inverse());
    let best = null, least = reach;
    for (const series of svg.querySelectorAll('.series'))
      pointsOf(series).forEach(({px, py}, index) => {
        const distance = Math.hypot(px - at.x, py - at.y);
        if (distance < least) [best, least] = [{series, index}, distance];
      });
    if (best) showPoint(best.series, best.index);
    else clear();
  };

  document.addEventListener('pointermove', (event) => {
    const svg = event.target.closest('.lines .chart');
    const entry = event.target.closest('.legend li');
    const mark = event.target.closest('.mark');
    if (svg) showNearest(svg, event);
    else if (entry) showMark(entry.closest('.lines').querySelector(
        `.mark[data-row="${entry.dataset.row}"]`));
    else if (mark) showMark(mark);
    else if (!document.activeElement.matches('.mark')) clear();
  });
  document.addEventListener('focusin', ({target}) => target.matches('.mark') && showMark(target));
  document.addEventListener('focusout', clear);

  const steps = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  document.addEventListener('keydown', (event) => {
    const mark = document.activeElement.closest('.mark');
    if (event.key === 'Escape') clear();
    if (!mark || !(event.key in steps)) return;
    event.preventDefault();
    const row = Number(mark.dataset.row) + steps[event.key][0];
    const col = Number(mark.dataset.col) + steps[event.key][1];
    if (mark.matches('.series') && row === Number(mark.dataset.row)) {
      if (pointsOf(mark)[col]) showPoint(mark, col);
      return;
    }
    const column = mark.matches('.series') ? '' : `[data-col="${col}"]`;
    const next = mark.ownerSVGElement.querySelector(`.mark[data-row="${row}"]${column}`);
    if (!next) return;
    mark.setAttribute('tabindex', -1);
    next.setAttribute('tabindex', 0);
    next.focus();
  });

  // Paper has no "Numbers" to click on.
  let opened = [];
  addEventListener('beforeprint', () => {
    opened = [...document.querySelectorAll('details:not([open])')];
    for (const details of opened) details.open = true;
  });
  addEventListener('afterprint', () => {
    for (const details of opened) details.open = false;
  });
})();
