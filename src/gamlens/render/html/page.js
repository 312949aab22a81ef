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
