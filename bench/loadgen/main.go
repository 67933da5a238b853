// Command loadgen drives and imitates NSQ and RocketMQ servers for Headrace's benchmarks.
//
// It exists because the generators that come with the servers run out of core before a fast server does:
// every command here is laid out once before the clock starts, sent in large writes, and replies are
// counted in place. What remains per message is what the kernel takes to move its bytes.
//
// Subcommands:
//
//	nsq-pub    publish as fast as the server answers, or one message at a time for latency
//	nsq-sub    consume and finish as fast as the server delivers
//	nsq-http   publish over HTTP, one request in flight on each connection
//	nsq-live   publish at a rate and consume it: how long does a message take?
//	nsq-null   a server that stores nothing, to measure the ceiling of the load tools themselves
//	nsq-conns  open thousands of connections that publish and consume a few messages each
//
//	rocket-send  send single messages or batches as RocketMQ's Java client writes them
//	rocket-hold  have messages wait, be committed or come back
//	rocket-pull  read a backlog as RocketMQ's push consumer asks for it
//	rocket-live  send at a rate and pull it: how long does a message take?
//	rocket-null  a broker that stores nothing
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
)

// subcommand is one way to run the program. run prints its own report.
type subcommand struct {
	name    string
	summary string
	run     func(flags *flag.FlagSet, args []string) error
}

var subcommands = []subcommand{
	{"nsq-pub", "publish to a topic and count the OK frames", runPub},
	{"nsq-http", "publish over HTTP and count the answers", runHTTP},
	{"nsq-sub", "consume from a channel and finish what is delivered", runSub},
	{"nsq-null", "serve NSQ without storing anything", runNull},
	{"nsq-live", "publish at a rate and consume what is published", runNSQLive},
	{"nsq-conns", "open many connections with little traffic each", runConns},
	{"rocket-send", "send to a RocketMQ broker and check every offset it answers", runRocketSend},
	{"rocket-hold", "send to a RocketMQ broker what is delayed, committed or sent back", runRocketHold},
	{"rocket-pull", "pull a backlog from a RocketMQ broker and check every offset", runRocketPull},
	{"rocket-live", "send at a rate and pull what is sent", runRocketLive},
	{"rocket-null", "serve RocketMQ without storing anything", runRocketNull},
}

func main() {
	if len(os.Args) < 2 || slices.Contains([]string{"-h", "-help", "--help", "help"}, os.Args[1]) {
		usage()
		return
	}
	for _, command := range subcommands {
		if command.name != os.Args[1] {
			continue
		}
		flags := flag.NewFlagSet(command.name, flag.ExitOnError)
		flags.Usage = func() {
			fmt.Fprintf(flags.Output(), "loadgen %s: %s\n\n", command.name, command.summary)
			flags.PrintDefaults()
		}
		if err := command.run(flags, os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "loadgen %s: %v\n", command.name, err)
			os.Exit(1)
		}
		return
	}
	fmt.Fprintf(os.Stderr, "loadgen: unknown subcommand %q\n\n", os.Args[1])
	usage()
	os.Exit(2)
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: loadgen SUBCOMMAND [flags]; loadgen SUBCOMMAND --help lists its flags")
	for _, command := range subcommands {
		fmt.Fprintf(os.Stderr, "  %-12s %s\n", command.name, command.summary)
	}
}
