module headrace.invalid/bench/loadgen

go 1.25.0
