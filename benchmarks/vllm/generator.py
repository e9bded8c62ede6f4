"""`vllm bench serve`, where vLLM is installed under another name than its own and its command does not start."""


def main() -> None:
    """Run it with this process's arguments."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as run
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm bench serve")
    add_cli_args(parser)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
