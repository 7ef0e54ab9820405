from tapelab.cli import main

main()
