# Two commands matter: `make book` and `make test`. Both set up .venv themselves.

.DEFAULT_GOAL := help
.PHONY: help book pdf test test-all lock records test-kernels test-compiled test-ptx check telling serve chapter notebooks lab lint format bench clean

PYTHON ?= python3
PORT   ?= 8000
BIN    := .venv/bin
READY  := .venv/.ready
# The versions that were tested together; `make test CONSTRAINTS=` installs the newest that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
PINNED      := $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))

# A process that has finished its tests takes over half of another's, so that none waits for the last.
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
# Of all tests, those that tell most about a change in a second: the contract, every gradient by every method, the formulas.
TELLING := $(addprefix tests/,test_import.py contract/test_shapes.py ops/test_contract.py verify/test_all_operations.py derivation/test_docstring.py cost/test_formulas.py)
# The tests whose results pages show.
RECORDED := $(addprefix tests/,verify/test_all_operations.py::test_every_operation_passes bugs/test_bugs.py::test_the_tools_find_what_the_record_says kernels/test_resources.py::test_pages_show_what_is_compiled compiled/test_row.py::test_every_kernel_is_right_as_compiled compiled/test_row.py::test_every_kernel_is_right_in_other_dtypes compiled/test_traffic.py::test_a_kernel_moves_few_more_bytes_than_it_must cost/test_javascript.py::test_the_formulas_of_the_page_are_those_derived_now)

# One thread for each of the processes that run side by side.
export OMP_NUM_THREADS ?= 1
# Otherwise each of these processes would compile the same modules again.
unexport PYTHONDONTWRITEBYTECODE

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# pip's own settings (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, pip.conf …) apply, so a machine can choose torch's CPU build.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Backpass needs Python 3.11 or later; choose one: make PYTHON=python3.11 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo 'Installing PyTorch and the other packages into .venv, which may take minutes:'
	$(BIN)/python -m pip install --quiet $(PINNED) --editable '.[book,test]'
	@touch $@

book: $(READY) ## execute every chapter and write the site to _build/html  (SOLUTIONS=0 leaves the solutions out)
	@$(BIN)/python ext/build.py

test: $(READY) ## run the tests; those that rotate, in part  (ARGS="tests/ops -k softmax" chooses)
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-all: export BACKPASS_PROVE = all
test-all: test ## prove everything in full, and write tests/proved.lock; takes several times as long  (ARGS="-k softmax" chooses)

records: $(READY) ## write the tests' results that pages show: verdicts, bugs, compiled kernels and their bytes, the calculators' formulas  (ARGS="-k softmax" chooses)
	@BACKPASS_RECORD=1 $(BIN)/python -m pytest -q $(RECORDED) $(ARGS)

lock: export BACKPASS_PROVE = changed
lock: test ## run the tests, and record in tests/proved.lock what was proved in full  (ARGS="-k softmax" chooses)

test-kernels: test-compiled test-ptx ## run every test of the kernels as compiled, and change their PTX; takes hours  (ARGS="-k softmax" chooses)

test-compiled: $(READY) ## run every test of the kernels as compiled  (ARGS="-k softmax" chooses)
	@BACKPASS_PTX=1 $(BIN)/python -m pytest $(PARALLEL) tests/kernels tests/compiled $(ARGS)

# In a run of its own: given the file's folder as well, pytest drops the file.
test-ptx: $(READY) ## change the PTX of the kernels in one place at a time; takes hours  (ARGS="-k softmax" chooses)
	@BACKPASS_PTX=1 $(BIN)/python -m pytest $(PARALLEL) tests/compiled/long_mutations.py $(ARGS)

check: $(READY) ## a first answer in about a minute: style, imports, and every operation by every check  (ARGS="-k softmax" chooses)
	@$(MAKE) --no-print-directory --jobs 2 lint telling

telling: $(READY)
	@$(BIN)/python -m pytest -q $(PARALLEL) $(TELLING) $(ARGS)

serve: book ## build, then serve the site at http://localhost:8000  (PORT=… for another)
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

chapter: $(READY) ## build one chapter quickly, for authors: make chapter NAME=softmax
	$(if $(NAME),,$(error say which chapter: make chapter NAME=softmax))
	@$(BIN)/python ext/build.py --chapter '$(NAME)'

notebooks: book ## write every chapter, executed, as a notebook to _build/notebooks
	@ls _build/notebooks/*.ipynb

pdf: book .venv/.pdf ## write the book as one PDF to _build/html/backpass.pdf, to which the page "How to read" then links
	@$(BIN)/python ext/backpass_pdf.py

.venv/.pdf: $(READY)
	$(BIN)/python -m pip install --quiet $(PINNED) --editable '.[pdf]'
	@touch $@

lab: .venv/.lab ## open the chapters in JupyterLab
	@$(BIN)/jupyter lab chapters

.venv/.lab: $(READY)
	$(BIN)/python -m pip install --quiet $(PINNED) --editable '.[lab]'
	@touch $@

lint: $(READY) ## check style, formatting, types, words, sentences, and that imports run one way
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/python tests/tools/words.py
	@$(BIN)/python tests/tools/sentences.py
	@$(BIN)/mypy

format: $(READY) ## format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY) ## time operations and kernels and write the records to benchmarks/results
	@$(BIN)/backpass bench

clean: ## delete what was built; .venv stays
	rm -rf _build .pytest_cache .ruff_cache .import_linter_cache .mypy_cache
