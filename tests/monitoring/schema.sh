#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Holds the dashboard to Grafana's own schema, as its package of types has it: fields, and the options of each kind of panel.
# schema.sh DASHBOARD VERSION
set -eu
dashboard=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts --prefix . "@grafana/schema@$2" typescript@5.7.3 >&2
types=./node_modules/@grafana/schema/dist/esm
# shellcheck disable=SC2016 # JavaScript
node -e '
const fs = require("fs"), [dashboard, types] = process.argv.slice(1), d = JSON.parse(fs.readFileSync(dashboard));
const options = { timeseries: ["timeseries", "TimeSeries"], stat: ["stat", "Stat"], table: ["table", "Table"] };
let text = `import type { Dashboard } from "${types}/index.mjs";\n`;
for (const [of, name] of Object.values(options)) text += `import type { Options as ${name} } from "${types}/raw/composable/${of}/panelcfg/x/${name}PanelCfg_types.gen";\n`;
text += "type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T; // enums as their texts\n";
text += `export const dashboard: Plain<Dashboard> = ${JSON.stringify(d, null, 1)};\n`;
for (const [i, p] of d.panels.entries()) {
  if (p.type === "row") continue;
  if (!options[p.type]) throw new Error(`panel ${p.title}: no schema for ${p.type} is looked at here`);
  text += `export const options${i}: Plain<Partial<${options[p.type][1]}>> = ${JSON.stringify(p.options || {}, null, 1)}; // ${JSON.stringify(p.title)}\n`;
}
fs.writeFileSync("check.ts", text);
console.log(`${d.panels.length} panels of ${d.title}`);
' "$dashboard" "$types"
npx --prefix . tsc --noEmit --strict --skipLibCheck --module esnext --moduleResolution bundler --target es2022 check.ts
echo "as the schema of Grafana $2 wants it"
