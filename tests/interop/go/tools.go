//go:build tools

// Package peers pins the unmodified NSQ programs that Headrace is tested and measured against.
//
// Nothing compiles this file: the build tag keeps it out, while `go mod tidy` reads its imports and
// so records every program's dependencies in go.mod and go.sum. build.sh builds the programs.
package peers

import (
	_ "github.com/nsqio/go-nsq"
	_ "github.com/nsqio/nsq/apps/nsq_stat"
	_ "github.com/nsqio/nsq/apps/nsq_tail"
	_ "github.com/nsqio/nsq/apps/nsq_to_file"
	_ "github.com/nsqio/nsq/apps/nsq_to_nsq"
	_ "github.com/nsqio/nsq/apps/nsqadmin"
	_ "github.com/nsqio/nsq/apps/nsqd"
	_ "github.com/nsqio/nsq/apps/nsqlookupd"
	_ "github.com/nsqio/nsq/apps/to_nsq"
	_ "github.com/nsqio/nsq/bench/bench_channels"
	_ "github.com/nsqio/nsq/bench/bench_reader"
	_ "github.com/nsqio/nsq/bench/bench_writer"
)
