(text) => {
  if (!text) return;
  const file = JSON.parse(text);
  const bytes = Uint8Array.from(atob(file.data), (letter) => letter.charCodeAt(0));
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([bytes], {type: file.kind}));
  link.download = file.name;
  document.body.appendChild(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
