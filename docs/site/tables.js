// Tables of the site: a click on a head sorts by its column; long tables get a field to filter rows.
const FILTERED = 12

const number = (cell) => {
  const text = cell.textContent.trim().replace(/[−–]/g, "-").replace(/,/g, "")
  const match = text.match(/^-?\d*\.?\d+/)
  return match ? Number(match[0]) : NaN
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

const addFilter = (table) => {
  const field = document.createElement("input")
  field.type = "search"
  field.className = "row-filter"
  field.placeholder = "Filter rows, for example: Fed"
  field.setAttribute("aria-label", "Filter the rows of the next table")
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/)
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase()
      row.hidden = !words.every((word) => text.includes(word))
    }
  })
  const place = table.closest(".md-typeset__scrollwrap") ?? table
  place.before(field)
}

for (const table of document.querySelectorAll(".md-content table")) {
  if (!table.tHead || !table.tBodies.length || table.closest(".jupyter-wrapper")) continue
  makeSortable(table)
  if (table.tBodies[0].rows.length > FILTERED) addFilter(table)
}
