// Tables of the site sort, and long ones get a field to filter rows (fl/report/templates/tables.js).
// A block `.table-filters` before a table names columns: of `data-choices` a value can be chosen, of
// `data-limits` the largest number.
const FILTERED = 12
const SHORT = 20 // Letters of a cell whose line is not broken.
const LIMITS = [0.5, 1, 1.5, 2, 5]

const addFilters = (table) => {
  const names = [...table.tHead.rows[0].cells].map((head) => head.textContent.trim())
  const wrapped = table.closest(".md-typeset__scrollwrap") ?? table
  let before = wrapped.previousElementSibling
  while (before?.matches("p")) before = before.previousElementSibling // The caption.
  const named = before?.matches(".table-filters") ? before.dataset : {}
  const conditions = [] // Functions of a row.
  const [block, apply] = addFilter(table, wrapped, conditions)
  const field = block.firstChild
  const addChoice = (name, options, condition) => {
    const select = document.createElement("select")
    for (const [value, text] of options) select.add(new Option(text, value))
    select.addEventListener("change", apply)
    conditions.push((row) => !select.value || condition(row.cells[names.indexOf(name)], select.value))
    const label = document.createElement("label")
    label.append(`${name} `, select)
    field.before(label)
  }
  const text = (cell) => cell.textContent.trim()
  for (const name of (named.choices ?? "").split(" ").filter(Boolean)) {
    const cells = filterable(table).map((row) => text(row.cells[names.indexOf(name)]))
    const values = [...new Set(cells)].sort().map((value) => [value, value])
    addChoice(name, [["", "all"], ...values], (cell, value) => text(cell) === value)
  }
  for (const name of (named.limits ?? "").split(" ").filter(Boolean)) {
    const options = LIMITS.map((limit) => [limit, `at most ${limit} ×`])
    addChoice(name, [["", "any"], ...options], (cell, value) => amount(cell) <= Number(value))
  }
}

for (const table of document.querySelectorAll(".md-content table")) {
  if (!table.tHead || !table.tBodies.length || table.closest(".jupyter-wrapper")) continue
  for (const cell of table.tBodies[0].querySelectorAll("td")) {
    cell.toggleAttribute("data-short", cell.textContent.trim().length <= SHORT)
  }
  if (table.tBodies[0].rows.length > FILTERED) addFilters(table)
  makeSortable(table)
}
