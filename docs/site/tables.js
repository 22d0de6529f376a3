// Tables of the site: a click on a head sorts by its column; long tables get a field to filter rows.
// A block `.table-filters` before a table names columns: of `data-choices` a value can be chosen, of
// `data-limits` the largest number.
const FILTERED = 12
const SHORT = 20 // Letters of a cell whose line is not broken.
const LIMITS = [0.5, 1, 1.5, 2, 5]
const FACTORS = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 }

const number = (cell) => {
  const text = cell.textContent.trim().replace(/[−–]/g, "-").replace(/,/g, "")
  const match = text.match(/^<?(-?\+?\d*\.?\d+)(?: ([kMGT])B?\b)?/)
  return match ? Number(match[1]) * (FACTORS[match[2]] ?? 1) : NaN
}

const sort = (table, column, descending) => {
  const body = table.tBodies[0]
  const value = (row) => row.cells[column]
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [number(value(a)), number(value(b))]
    if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1 // rows without a number stay at the end
    const order = isNaN(x) ? value(a).textContent.localeCompare(value(b).textContent) : x - y
    return descending ? -order : order
  })
  body.append(...rows)
}

const makeSortable = (table) => {
  const heads = [...table.tHead.rows[0].cells]
  heads.forEach((head, column) => {
    head.tabIndex = 0
    head.title = "Sort by this column"
    const act = () => {
      const descending = head.getAttribute("aria-sort") === "ascending"
      heads.forEach((other) => other.removeAttribute("aria-sort"))
      head.setAttribute("aria-sort", descending ? "descending" : "ascending")
      sort(table, column, descending)
    }
    head.addEventListener("click", act)
    head.addEventListener("keydown", (event) => event.key === "Enter" && act())
  })
}

const labelled = (control, text) => {
  const label = document.createElement("label")
  label.append(`${text} `, control)
  return label
}

const selection = (options, act) => {
  const select = document.createElement("select")
  for (const [value, text] of options) select.add(new Option(text, value))
  select.addEventListener("change", act)
  return select
}

const addFilters = (table) => {
  const rows = [...table.tBodies[0].rows]
  const names = [...table.tHead.rows[0].cells].map((head) => head.textContent.trim())
  const wrapped = table.closest(".md-typeset__scrollwrap") ?? table
  const conditions = [] // Functions of a row.
  const act = () => {
    for (const row of rows) row.hidden = !conditions.every((condition) => condition(row))
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`
  }
  const field = document.createElement("input")
  field.type = "search"
  field.placeholder = "Filter rows, for example: Fed"
  field.setAttribute("aria-label", "Filter the rows of the next table")
  field.addEventListener("input", act)
  conditions.push((row) => {
    const text = row.textContent.toLowerCase()
    return field.value.toLowerCase().split(/\s+/).every((word) => text.includes(word))
  })
  const count = document.createElement("output")
  const block = document.createElement("div")
  block.className = "row-filters"
  let before = wrapped.previousElementSibling
  while (before?.matches("p")) before = before.previousElementSibling // The caption.
  const named = before?.matches(".table-filters") ? before.dataset : {}
  for (const name of (named.choices ?? "").split(" ").filter(Boolean)) {
    const column = names.indexOf(name)
    const values = [...new Set(rows.map((row) => row.cells[column].textContent.trim()))].sort()
    const select = selection([["", "all"], ...values.map((value) => [value, value])], act)
    conditions.push((row) => !select.value || row.cells[column].textContent.trim() === select.value)
    block.append(labelled(select, name))
  }
  for (const name of (named.limits ?? "").split(" ").filter(Boolean)) {
    const column = names.indexOf(name)
    const options = LIMITS.map((limit) => [limit, `at most ${limit} ×`])
    const select = selection([["", "any"], ...options], act)
    conditions.push((row) => !select.value || number(row.cells[column]) <= Number(select.value))
    block.append(labelled(select, name))
  }
  block.append(field, count)
  wrapped.before(block)
  act()
}

for (const table of document.querySelectorAll(".md-content table")) {
  if (!table.tHead || !table.tBodies.length || table.closest(".jupyter-wrapper")) continue
  makeSortable(table)
  for (const cell of table.tBodies[0].querySelectorAll("td")) {
    cell.toggleAttribute("data-short", cell.textContent.trim().length <= SHORT)
  }
  if (table.tBodies[0].rows.length > FILTERED) addFilters(table)
}
