// Light or dark: as the system has it, until somebody chooses.

import { remember, remembered, root } from "./dom.js";

const button = document.getElementById("theme");

function setTheme(theme) {
  root.dataset.theme = theme;
  button.textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to the ${button.textContent.toLowerCase()} theme`);
}

button.addEventListener("click", () => {
  const theme = root.dataset.theme === "dark" ? "light" : "dark";
  remember("theme", theme);
  setTheme(theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  if (!remembered("theme")) setTheme(event.matches ? "dark" : "light");
});

export function startTheme() {
  setTheme(root.dataset.theme);
}
