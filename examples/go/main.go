// A whole approval with the library of NATS alone, by docs/nats.md.
//
//	go run main.go      with NATS_URL, and the password of the login service in NATS_PASSWORD
//
// Killed while it waits and started again, it goes on with the same call. Killed after it claimed
// the call, nobody knows whether the refund was given: the next process does not run it, and a
// minute after the claim people see that it is in doubt. A longer run would renew its claim.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
)

const call = "shop/order-32/refund-1"

type object map[string]any

// The state of a call, as far as this program needs it.
type state struct {
	Status    string
	Arguments string
	Result    struct{ Text string } // what a model would read
}

// An answer: the state of the call or, to wait, whether it is decided and the state.
type answer struct {
	state
	Decided bool
	State   state
}

func main() {
	inbox := uuid.NewString() // an inbox that no other program with this login may hear
	nc, err := nats.Connect(os.Getenv("NATS_URL"),
		nats.UserInfo("service", os.Getenv("NATS_PASSWORD")),
		nats.Name("refunds inbox="+inbox), nats.CustomInboxPrefix("_INBOX.service."+inbox),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	ask(nc, "request", object{"call": call, "tool": "refund",
		"arguments": `{"order":"A-32","amount":480}`, "requester": "ben"})
	found := answer{}
	for !found.Decided {
		found = ask(nc, "wait", object{"call": call, "timeout_s": 20})
	}
	ended := found.State
	if ended.Status == "approved" {
		ended = run(nc)
	}
	known := ended.Result.Text
	if ended.Status == "running" || ended.Status == "in_doubt" {
		known = "another process claimed it, and its result is not recorded. It was not run again"
	}
	fmt.Printf("%s is %s: %s\n", call, ended.Status, known)
}

// run claims the call, gives the refund and records how it ended. The claim's id is this run's own,
// so that a claim whose answer was lost is repeated, and no other process runs the call.
func run(nc *nats.Conn) state {
	claimed := ask(nc, "claim", object{"call": call, "claim": uuid.NewString(), "lease_s": 60})
	if claimed.Status != "running" {
		log.Fatalf("the claim was answered with the status %q; nothing has run", claimed.Status)
	}
	output, err := refund(claimed.Arguments)
	if err != nil {
		return ask(nc, "finish", object{"call": call, "error": err.Error()}).state
	}
	return ask(nc, "finish", object{"call": call, "output": output}).state
}

func refund(arguments string) (string, error) {
	order := struct {
		Order  string
		Amount json.Number
	}{}
	if err := json.Unmarshal([]byte(arguments), &order); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s given back for order %s", order.Amount, order.Order), nil
}

// ask sends a request, and the same one again while nobody knows what became of it: that is safe.
// Any other error ends the program, so that only an answer lets it go on.
func ask(nc *nats.Conn, endpoint string, fields object) answer {
	body, err := json.Marshal(fields)
	if err != nil {
		log.Fatal(err)
	}
	for {
		found, err := asked(nc, endpoint, body)
		if err == nil {
			return found
		}
		if !errors.Is(err, errAway) {
			log.Fatalf("%s: %v", endpoint, err)
		}
		log.Printf("%s: %v", endpoint, err)
		time.Sleep(time.Second)
	}
}

var errAway = errors.New("again in a second")

func asked(nc *nats.Conn, endpoint string, body []byte) (answer, error) {
	var found answer
	reply, err := nc.Request("approvals.service.billing."+endpoint, body, 30*time.Second)
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrTimeout) {
		return found, fmt.Errorf("%v; %w", err, errAway) // no console runs, or the answer is lost
	}
	if err != nil {
		return found, err
	}
	problem := reply.Header.Get("Nats-Service-Error")
	switch reply.Header.Get("Nats-Service-Error-Code") {
	case "":
	case "503", "408":
		return found, fmt.Errorf("%s; %w", problem, errAway)
	default:
		return found, errors.New(problem)
	}
	return found, json.Unmarshal(reply.Data, &found)
}
