// Light, dark, or as the system has it. In a script of its own, before anything is drawn, so that nothing flashes.
(() => {
  const chosen = localStorage.getItem('headwater-theme');
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
})();
