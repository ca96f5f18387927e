"""Are answers over linked KV as good as a full prefill's? Tasks ask, methods answer, measures compare.

tasks/     a data set or a generator ── open_task ──► Task: EvalItem (question, answers, passages), corpus
item       what these are, and which half an item belongs to
method     ENCODING,SELECTOR[,POLICY@BUDGET]: how the prompt's KV comes to be
encoders   the KV of the prompt's chunks, encoded once or loaded from a store
scoring    one item by one method: the answer forced token by token, or decoded
measures   KL and agreement with full prefill, likelihood, rank, words in common
run        every item by every method ──► records: one line each, so that a run goes on where it stopped
summary    records ──► means with their errors, as table and JSON
plots      summary ──► pictures
"""
