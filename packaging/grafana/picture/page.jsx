// The dashboard as a page: its panels in their places, drawn by Grafana's components in the dark theme.
// It reads dashboard.json and results.json beside it; draw writes both.
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import {
  applyNullInsertThreshold,
  createTheme,
  dateTime,
  FieldType,
  getDisplayProcessor,
  getDisplayValueAlignmentFactors,
  toDataFrame,
} from '@grafana/data';
import {
  BarGauge,
  BigValue,
  GlobalStyles,
  Icon,
  PanelChrome,
  ThemeContext,
  TimeSeries,
  VizRepeater,
} from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { createRoot } from 'react-dom/client';

const UNIT = 30;
const GAP = 8;
const EDGE = 16;
const theme = createTheme({ colors: { mode: 'dark' } });
// What a panel without thresholds has in Grafana.
const THRESHOLDS = { mode: 'absolute', steps: [{ color: 'green', value: -Infinity }, { color: 'red', value: 80 }] };

const legend = (format, labels) => format.replace(/{{\s*(\w+)\s*}}/g, (_, name) => labels[name] ?? '');

// Sets `custom.lineStyle` and such.
function set(config, path, value) {
  const names = path.split('.');
  const last = names.pop();
  const inner = names.reduce((at, name) => (at[name] = { ...at[name] }), config);
  inner[last] = value;
}

// The configuration of a panel's fields, with the overrides for one of its expressions.
function fieldConfig(panel, refId, mode) {
  const { defaults = {}, overrides = [] } = panel.fieldConfig;
  const config = { color: { mode }, ...defaults };
  const { mode: kind, steps } = defaults.thresholds ?? THRESHOLDS;
  config.thresholds = { mode: kind, steps: steps.map((step) => ({ ...step, value: step.value ?? -Infinity })) };
  for (const { matcher, properties } of overrides) {
    if (matcher.id !== 'byFrameRefID') {
      throw new Error(`no matcher ${matcher.id} here`);
    }
    if (matcher.options === refId) {
      properties.forEach(({ id, value }) => set(config, id, value));
    }
  }
  return config;
}

// Each series of the panel's expressions, with its name and its configuration.
function seriesOf(panel, results, mode) {
  return panel.targets.flatMap(({ refId, legendFormat }) =>
    results.panels[panel.id][refId].map(({ metric, values, value }) => {
      const config = { ...fieldConfig(panel, refId, mode), displayNameFromDS: legend(legendFormat, metric) };
      const numbers = (values ?? [value]).map(([, number]) => Number(number));
      const times = (values ?? [value]).map(([time]) => time * 1000);
      return { refId, labels: metric, config, numbers, times };
    })
  );
}

function Graph({ panel, results, width, height }) {
  const frames = seriesOf(panel, results, 'palette-classic').map(({ refId, labels, config, numbers, times }, index) => {
    const dense = toDataFrame({
      refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: times, config: { interval: results.step * 1000 } },
        { name: 'Value', type: FieldType.number, values: numbers, labels, config },
      ],
    });
    // A time without a figure is a gap, as in Grafana's own panel.
    const frame = applyNullInsertThreshold({ frame: dense });
    const [time, field] = frame.fields;
    time.display = getDisplayProcessor({ field: time, theme, timeZone: 'utc' });
    field.state = { seriesIndex: index };
    field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
    return frame;
  });
  if (frames.length === 0) {
    return <NoData />;
  }
  const from = dateTime(results.begin * 1000);
  const to = dateTime(results.end * 1000);
  const range = { from, to, raw: { from, to } };
  return (
    <TimeSeries frames={frames} width={width} height={height} timeRange={range} timeZone="utc"
      legend={panel.options.legend} />
  );
}

function displayValues(panel, results) {
  return seriesOf(panel, results, 'thresholds').map(({ config, numbers }) => {
    const display = getDisplayProcessor({ field: { type: FieldType.number, config }, theme, timeZone: 'utc' });
    return { config, display, value: { ...display(numbers.at(-1)), title: config.displayNameFromDS } };
  });
}

function Stat({ panel, results, width, height }) {
  const [{ value }] = displayValues(panel, results);
  return (
    <BigValue value={{ ...value, title: undefined }} width={width} height={height} theme={theme} colorMode="value"
      graphMode="area" justifyMode="auto" textMode="auto" />
  );
}

function Bars({ panel, results, width, height }) {
  const values = displayValues(panel, results);
  const { displayMode, orientation, showUnfilled } = panel.options;
  return (
    <VizRepeater source={results} renderCounter={0} width={width} height={height} orientation={orientation}
      itemSpacing={10} minVizHeight={16} minVizWidth={8} maxVizHeight={300} getValues={() => values}
      getAlignmentFactors={(them) => getDisplayValueAlignmentFactors(them.map(({ value }) => ({ display: value })))}
      renderValue={({ value: { config, display, value }, width, height, alignmentFactors }) => (
        <BarGauge value={value} field={config} display={display} width={width} height={height} theme={theme}
          itemSpacing={10} lcdCellWidth={8} orientation={orientation} displayMode={displayMode}
          showUnfilled={showUnfilled} alignmentFactors={alignmentFactors} valueDisplayMode="color"
          namePlacement="auto" />
      )} />
  );
}

function Rows({ panel, results, width, height }) {
  const excluded = panel.transformations.find(({ id }) => id === 'organize').options.excludeByName;
  const series = panel.targets.flatMap(({ refId }) => results.panels[panel.id][refId]);
  if (series.length === 0) {
    return <NoData />;
  }
  const all = new Set(series.flatMap(({ metric }) => Object.keys(metric)));
  const names = [...all].filter((name) => !excluded[name]).sort();
  const valuesOf = (name) => series.map(({ metric }) => metric[name] ?? '');
  const fields = names.map((name) => ({ name, type: FieldType.string, config: {}, values: valuesOf(name) }));
  const data = toDataFrame({ fields });
  data.fields.forEach((field) => (field.display = getDisplayProcessor({ field, theme })));
  return <TableNG data={data} width={width} height={height} structureRev={1} />;
}

const NoData = () => (
  <div style={{ height: '100%', display: 'flex', alignItems: 'center', justifyContent: 'center' }}>No data</div>
);

const KINDS = { timeseries: Graph, stat: Stat, bargauge: Bars, table: Rows };

function Dashboard({ dashboard, results }) {
  const column = (window.innerWidth - 2 * EDGE + GAP) / 24;
  return dashboard.panels.map((panel) => {
    const { x, y, w, h } = panel.gridPos;
    const [width, height] = [w * column - GAP, h * (UNIT + GAP) - GAP];
    const [left, top] = [EDGE + x * column, EDGE + y * (UNIT + GAP)];
    const Kind = KINDS[panel.type];
    return (
      <div key={panel.id} style={{ position: 'absolute', left, top, width, height }}>
        {panel.type === 'row' ? (
          <div style={{ display: 'flex', alignItems: 'center', height, gap: 8, ...theme.typography.h6 }}>
            <Icon name="angle-down" /> {panel.title}
          </div>
        ) : (
          <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
            {(width, height) => <Kind panel={panel} results={results} width={width} height={height} />}
          </PanelChrome>
        )}
      </div>
    );
  });
}

async function main() {
  const [dashboard, results] = await Promise.all(
    ['dashboard.json', 'results.json'].map((name) => fetch(name).then((answer) => answer.json()))
  );
  // A canvas does not wait for its font.
  await Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 12px Inter`)));
  document.body.style.background = theme.colors.background.canvas;
  createRoot(document.body.appendChild(document.createElement('div'))).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Dashboard dashboard={dashboard} results={results} />
    </ThemeContext.Provider>
  );
}

main();
