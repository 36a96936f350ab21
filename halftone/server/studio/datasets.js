// The folders of pictures that the server has, and what each still lacks.

import { api } from "./api.js";
import { changed } from "./store.js";

export const datasets = { list: [], loaded: false };

export async function loadDatasets() {
  datasets.list = (await api.datasets()).datasets;
  datasets.loaded = true;
  changed("datasets");
  return datasets.list;
}

export const datasetNamed = (name) => datasets.list.find((d) => d.name === name) ?? null;

/// A name that is not taken yet.
export function freeName(base) {
  for (let n = 1; n < 1000; ++n) {
    const name = n === 1 ? base : `${base}-${n}`;
    if (!datasetNamed(name)) return name;
  }
  return `${base}-${Date.now()}`;
}

export async function createDataset(name) {
  await api.createDataset(name);
  await loadDatasets();
  return name;
}

export const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
export const nameProblem = (name, what) => (!name ? `${what} needs a name.` : NAME.test(name) ? ""
  : "Use letters, digits, dots, dashes and underscores, and begin with a letter or digit.");
