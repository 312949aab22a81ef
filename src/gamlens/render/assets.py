"""The style sheet and the script of every page."""

CSS = """
:root{color-scheme:light dark;--paper:#fdfcfa;--ink:#211e26;--soft:#676270;--line:#e7e3dc;--tint:#f4f1ec;
--accent:#a31f63;--bar:#c8406a;--good:#16805a;--bad:#c0262f;
--c0:#8b8792;--c1:#b3205f;--c2:#1f6fb5;--c3:#128a68;--c4:#b86a00;--c5:#6a4bc0;--c6:#5b6470;
--serif:ui-serif,"Iowan Old Style","Palatino Linotype",Palatino,Charter,Georgia,"Liberation Serif",serif;
--sans:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Liberation Sans",sans-serif}
@media(prefers-color-scheme:dark){:root{--paper:#151318;--ink:#e9e6ec;--soft:#a39dac;--line:#322d39;--tint:#1e1b23;
--accent:#ff9f68;--bar:#e2604f;--good:#3fbf8c;--bad:#f0646a;
--c0:#8d8797;--c1:#ff7a9c;--c2:#6db4f5;--c3:#4fd1a5;--c4:#f2b04a;--c5:#b49cff;--c6:#b8c0cc}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0 auto;max-width:70rem;padding:0 clamp(1.1rem,4vw,2.5rem) 4rem;background:var(--paper);
color:var(--ink);font:1.03rem/1.62 var(--sans);overflow-wrap:break-word}
body::before{content:"";position:fixed;inset:0 0 auto;height:4px;z-index:1;
background:linear-gradient(90deg,#5c1470,#a82074,#e24848,#fa8a2c,#ffc448)}
h1,h2,h3{font-family:var(--serif);font-weight:600;line-height:1.2;text-wrap:balance;letter-spacing:-.01em}
h1{font-size:clamp(2rem,5.5vw,3rem);margin:clamp(2.2rem,6vw,4.5rem) 0 .9rem}
h2{font-size:clamp(1.45rem,3.6vw,1.9rem);margin:0 0 .7rem}
h3{font-size:1.15rem;margin:2rem 0 .6rem}
p{max-width:42rem;margin:0 0 1rem}
.lead{color:var(--soft)}
header .lead{font-size:1.18rem;line-height:1.55}
a{color:var(--accent);text-underline-offset:.18em;text-decoration-thickness:.06em}
code{font:.88em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--tint);
padding:.12em .35em;border-radius:.3em}
:focus-visible{outline:2px solid var(--accent);outline-offset:3px;border-radius:4px}
nav{margin:1.6rem 0 0;font-size:.95rem}
nav ol{list-style:none;display:flex;flex-wrap:wrap;gap:.35rem 1.5rem;margin:0;padding:0}
nav a{text-decoration:none;display:inline-block;padding:.2rem 0}
nav a:hover{text-decoration:underline}
section{border-top:1px solid var(--line);margin-top:clamp(2rem,5vw,3rem);padding-top:clamp(1.6rem,4vw,2.4rem);
scroll-margin-top:4px}
footer{border-top:1px solid var(--line);margin-top:3.5rem;padding-top:1.4rem;color:var(--soft);
font-size:.9rem}
.scroll,.gallery,.single,.bars{margin:1.3rem 0 1.7rem}
.scroll{overflow-x:auto;padding:4px;margin-inline:-4px}
.grid{display:grid;grid-template-columns:repeat(var(--n),minmax(9.5rem,20rem));gap:1.1rem 1rem}
.grid.labelled{grid-template-columns:minmax(5rem,max-content) repeat(var(--n),minmax(9.5rem,20rem))}
.row{display:contents}
.head{font-weight:600;font-size:.92rem;line-height:1.3;text-align:center;align-self:end}
.label{font-weight:600;font-size:.92rem;line-height:1.3;align-self:center;max-width:9rem}
.gallery{display:grid;gap:1.1rem 1rem;
grid-template-columns:repeat(auto-fill,minmax(max(9rem,(100% - (var(--n) - 1)*1rem)/var(--n)),1fr))}
.single{max-width:40rem}
figure{margin:0}
.frame{display:grid;place-items:center;width:100%}
.frame img,.frame button{grid-area:1/1}
img{display:block;max-width:100%;height:auto;border-radius:4px}
img.pixels{image-rendering:pixelated;border-radius:0}
img.good{box-shadow:0 0 0 3px var(--good)}
img.bad{box-shadow:0 0 0 3px var(--bad)}
figcaption{font-size:.86rem;line-height:1.4;color:var(--soft);margin-top:.5rem;text-align:center;text-wrap:pretty}
.single figcaption{text-align:left}
figcaption strong{color:var(--ink)}
.tick{font-weight:700}.tick.good{color:var(--good)}.tick.bad{color:var(--bad)}
.bars{list-style:none;padding:0;max-width:42rem;display:grid;align-items:center;
grid-template-columns:minmax(6rem,max-content) 1fr max-content;gap:.45rem 1rem;font-size:.95rem}
.bars li{display:contents}
.bars li>:last-child{font-variant-numeric:tabular-nums;text-align:right;color:var(--soft)}
.track{height:.7rem;border-radius:.35rem;background:var(--tint);overflow:hidden}
.track i{display:block;height:100%;border-radius:.35rem;background:var(--bar)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr));gap:1.4rem 1.6rem;
margin:1.3rem 0 1.7rem}
.chart{margin:0 0 1.4rem;max-width:30rem}
.charts .chart{margin:0;max-width:30rem}
.chart h4{font-size:1rem;margin:0 0 .3rem;line-height:1.3}
.chart svg{display:block;width:100%;height:auto;overflow:visible}
.chart text{font:11px var(--sans);fill:var(--soft);font-variant-numeric:tabular-nums}
.chart .axis{stroke:var(--line);fill:none}
.chart .guide{stroke:var(--soft);stroke-dasharray:2 3;fill:none}
.chart .curve{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.chart .dashed{stroke-dasharray:6 4}.chart .dotted{stroke-dasharray:1 4}
.chart .dots{fill:none;stroke-width:4;stroke-linecap:round}
.chart .marks{fill:none;stroke-width:7;stroke-linecap:round}
.chart .whisker{fill:none;stroke-width:1.5}.chart .band{opacity:.14;stroke:none}
.chart .ring{fill:var(--paper);stroke-width:2.2}
.chart figcaption{text-align:left}
.t0{stroke:var(--c0);fill:var(--c0)}.t1{stroke:var(--c1);fill:var(--c1)}.t2{stroke:var(--c2);fill:var(--c2)}
.t3{stroke:var(--c3);fill:var(--c3)}.t4{stroke:var(--c4);fill:var(--c4)}.t5{stroke:var(--c5);fill:var(--c5)}
.t6{stroke:var(--c6);fill:var(--c6)}
.legend,.keys{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.4rem 0 .2rem;padding:0;
font-size:.86rem;line-height:1.5;color:var(--soft)}
.legend svg{display:inline-block;width:26px;height:10px;margin-right:.4em;vertical-align:middle}
.keys{margin:-.6rem 0 1.7rem;align-items:center}
.keys li{display:flex;align-items:center;gap:.45em}
.swatch{width:1.9rem;background:#121216;padding:3px 2px;border-radius:2px}.swatch b{display:block}
.ramp{width:6rem;height:.7rem;border-radius:2px}
.head.group{border-bottom:1px solid var(--line);padding-bottom:.3rem}
table{border-collapse:collapse;font-size:.95rem;line-height:1.4;min-width:min(100%,30rem)}
th,td{padding:.5rem .9rem;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
th:first-child,td:first-child{padding-left:.2rem}
th{font-weight:600;border-bottom:2px solid var(--line);vertical-align:bottom;white-space:nowrap}
.num{text-align:right;font-variant-numeric:tabular-nums}
td.num{white-space:nowrap}
tbody tr:hover{background:var(--tint)}
th button{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer}
th button::after,th.num button::before{content:"↕";opacity:.35;margin-left:.35em}
th.num button::before{margin:0 .35em 0 0}
th.num button::after{content:none!important}
th[aria-sort=ascending] button::before,th[aria-sort=ascending] button::after{content:"↑"}
th[aria-sort=descending] button::before,th[aria-sort=descending] button::after{content:"↓"}
th:not([aria-sort=none]) button::before,th:not([aria-sort=none]) button::after{opacity:1;color:var(--accent)}
th:not(.num) button::before{content:none!important}
.frame button{background:none;border:0;padding:0;cursor:zoom-in;display:block}
.frame button img{width:100%!important}
dialog{border:0;padding:4px;margin:auto;background:none;color:#f2eff5;max-width:none;max-height:none;overflow:visible;
cursor:zoom-out}
dialog:focus-visible{outline:none}
dialog::backdrop{background:rgb(12 10 16/.96)}
dialog img{width:min(94vw,60rem,(100vh - 7rem)*var(--ratio));max-width:none;margin:auto}
dialog p{max-width:94vw;margin:.9rem auto 0;text-align:center;font-size:.95rem;line-height:1.45}
@media(max-width:40rem){
.grid,.grid.labelled{grid-template-columns:repeat(var(--n),minmax(38vw,1fr));gap:.9rem .7rem}
.corner{display:none}
.label{grid-column:1/-1;position:sticky;left:0;justify-self:start;max-width:85vw;margin-top:.5rem}
.bars{grid-template-columns:1fr max-content;gap:.2rem .8rem}
.bars .track{grid-column:1/-1;order:1;margin-bottom:.5rem}
.bars li{display:grid;grid-column:1/-1;grid-template-columns:subgrid}
th,td{padding:.5rem .6rem}}
@media(prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
@media print{nav{display:none}body{max-width:none;padding:0}.scroll{overflow:visible}
figure,tr{break-inside:avoid}th button::before,th button::after{content:none!important}}
"""

JS = """
for (const table of document.querySelectorAll('table.sortable')) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement('button'), numeric = head.classList.contains('num');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const now = head.getAttribute('aria-sort');
      const first = numeric ? 'descending' : 'ascending', other = numeric ? 'ascending' : 'descending';
      const order = now === first ? other : first, sign = order === 'ascending' ? 1 : -1;
      heads.forEach(each => each.setAttribute('aria-sort', each === head ? order : 'none'));
      const key = row => numeric ? row.cells[column].dataset.sort : row.cells[column].textContent;
      body.append(...[...body.rows].sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === '' || y === '') return (x === '') - (y === '');
        return sign * (numeric ? x - y : x.localeCompare(y, undefined, {numeric: true}));
      }));
    };
  });
}
const images = [...document.querySelectorAll('.frame img')];
if (images.length && window.HTMLDialogElement) {
  const dialog = document.createElement('dialog'), large = new Image(), words = document.createElement('p');
  dialog.setAttribute('aria-label', 'Enlarged picture');
  dialog.tabIndex = -1;
  dialog.append(large, words);
  document.body.append(dialog);
  let shown = 0;
  const show = index => {
    const image = images[shown = (index + images.length) % images.length], figure = image.closest('figure');
    const caption = figure.querySelector('figcaption')?.textContent.trim();
    large.src = image.src; large.alt = image.alt; large.className = image.className;
    large.style.setProperty('--ratio', image.width / image.height);
    words.textContent = [figure.dataset.where, caption].filter(Boolean).join(' — ');
  };
  images.forEach((image, index) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.title = 'Enlarge';
    button.style.width = image.style.width;
    image.replaceWith(button);
    button.append(image);
    button.onclick = () => { show(index); dialog.showModal(); };
  });
  dialog.onclick = () => dialog.close();
  dialog.onkeydown = event => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (step) show(shown + step);
  };
}
"""
